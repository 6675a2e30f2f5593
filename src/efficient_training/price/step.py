"""One training step in symbols: `efficient_training.run.Trainer.step` over a model of the given words.

Blocks that are alike are not run one by one, but by the segments of `efficient_training.price.plan`.
"""

from collections.abc import Callable, Sequence

from .algebra import ONE, Size, total
from .autograd import Gradients, Graph, Parameter, Tensor
from .blocks import Inputs, Weights, block
from .checkpoint import checkpointed
from .head import divided, mean_loss
from .norms import layer_norm, rms_norm
from .operators import FLOAT, LONG, add, graph_of, made_by, record, scale, to, view
from .optimizer import optimizer_step
from .parameters import shard_tables, tables
from .plan import Segment
from .sizes import (
    FURTHER_BLOCKS,
    HALF_HEAD,
    HEAD_DIM,
    HIDDEN,
    OWNED,
    OWNED_PARAMETERS,
    SEQUENCE,
    TOKENS,
    TWO_SEQUENCES,
)
from .tape import Instant, Region
from .units import units_of
from .words import Words


def run_step(words: Words, segments: Sequence[Segment]) -> list[Instant]:
    """Run the step on a tape, and return all its instants."""
    graph = Graph(words.autocast)
    model = _Model(graph, words, segments)
    held = [_constant(graph, size, name) for name, size in model.constants()]
    with graph.in_phase("forward"):
        loss = divided(_loss(model, segments))
    with graph.in_phase("backward"):
        if words.scaled:
            scaled = scale(loss, FLOAT)
            graph.backward(scaled)
            del scaled
        else:
            graph.backward(loss, model.finish)
    with graph.in_phase("optimizer step"):
        optimizer_step(graph, words, *model.kept)
    result = graph.instants()
    del held, loss
    return result


def _constant(graph: Graph, size: Size, component: str) -> Tensor:
    tensor = graph.new(size, 1)
    assert tensor.storage is not None
    tensor.storage.entry.component = component
    return tensor


class _Model:
    """The parameters, of each segment's blocks and outside of them, and under FSDP2 the units that they make."""

    def __init__(self, graph: Graph, words: Words, segments: Sequence[Segment]) -> None:
        self.graph, self.words = graph, words
        self.table = tables(words)
        self.kept = shard_tables(self.table, words) if words.fsdp else self.table
        self.outer = {name: self._parameter(size) for name, size in self.table.before + self.table.after}
        self.inner = [self._segment_weights(segment) for segment in segments]
        self.units = units_of(graph, words, self.kept, list(self.outer.values()), self.inner) if words.fsdp else None

    def _segment_weights(self, segment: Segment) -> list[Weights]:
        weights = []
        with self.graph.within(segment.region):
            for region in segment.blocks:
                with self.graph.within(region):
                    weights.append({name: self._parameter(size) for name, size in self.table.block})
        return weights

    def _parameter(self, numel: Size) -> Parameter:
        """A weight, which has no storage here, as all weights are one constant; but its gradient has.

        Under DDP, gradients of the micro-batches before the last are tensors of their own (`no_sync`), until the last
        one is added and the sum copied to a bucket.
        """
        words = self.words
        bucketed = words.sharding in ("ddp", "zero1")
        made = Parameter(self.graph, numel, words.itemsize, words.accumulating and not words.fsdp, bucketed)
        if bucketed and words.accumulating:
            made.gradient = self.graph.new(numel, words.itemsize)
            assert made.gradient.storage is not None
            made.gradient.storage.entry.component = "gradients"
        return made

    def finish(self) -> None:
        """What comes at the end of backward."""
        if self.units is not None:
            self.units.finish()

    def constants(self) -> list[tuple[str, Size]]:
        """What is alive throughout: weights and buffers (two of rotary frequencies), AdamW's two moments and its step
        of each parameter, and the gradients: under accumulation, and under DDP always, as its buckets."""
        words = self.words
        before, block, after = self.kept
        parts = [(size, ONE) for _, size in before + after] + [(size, FURTHER_BLOCKS + 1) for _, size in block]
        weights = total(size * times for size, times in parts) * words.state_itemsize
        buffers = Size.of(0) if words.family == "gpt2" else HALF_HEAD * (2 * FLOAT)
        state = weights * 2 + total(times for _, times in parts) * FLOAT
        if words.sharding == "zero1":
            state = OWNED * (2 * words.state_itemsize) + OWNED_PARAMETERS * FLOAT
        out = [("weights", weights + buffers), ("optimizer state", state)]
        held = words.accumulating or words.sharding in ("ddp", "zero1")
        return [*out, ("gradients", weights)] if held else out


def _loss(model: _Model, segments: Sequence[Segment]) -> Tensor:
    graph, words = model.graph, model.words
    if model.units is not None:
        model.units.root.begin()
    graph.autocast = graph.autocasting
    hidden = (_gpt2 if words.family == "gpt2" else _llama)(model, segments)
    loss = mean_loss(hidden, model.outer["embedding" if words.tied else "head"], words)
    graph.autocast = False
    graph.casts.clear()
    return model.units.end(loss) if model.units is not None else loss


def _llama(model: _Model, segments: Sequence[Segment]) -> Tensor:
    """The base model: embedding, positions, rotary tables, blocks, norm. Positions, S longs, live until it returns."""
    graph = model.graph
    embedded = _embedding(model.outer["embedding"], TOKENS)
    positions = _positions(graph)
    tables = _rotary(graph, embedded.itemsize)
    hidden = _blocks(model, embedded, Inputs(tables, positions), segments)
    return rms_norm(hidden, model.outer["norm.weight"], TOKENS)


def _gpt2(model: _Model, segments: Sequence[Segment]) -> Tensor:
    """The base model: embeddings of tokens, T x h, and of positions, S x h, both alive until it returns; their sum."""
    embedded = _embedding(model.outer["embedding"], TOKENS)
    positions = _positions(model.graph)
    placed = _embedding(model.outer["positions"], SEQUENCE, positions)
    hidden = add(embedded, _for_each_sequence(placed))
    hidden = _blocks(model, hidden, Inputs(None, positions), segments)
    return layer_norm(hidden, model.outer["norm.weight"], model.outer["norm.bias"], TOKENS)


def _for_each_sequence(placed: Tensor) -> Tensor:
    """Broadcast over the sequences; backward sums over them, where there are several."""

    def run(saved: list[Tensor], gradients: Gradients) -> Gradients:
        g = gradients[0]
        assert g is not None
        summed = graph_of(g).allocate(TWO_SEQUENCES * SEQUENCE * HIDDEN * g.itemsize)
        return [Tensor(g.tape, summed, SEQUENCE * HIDDEN, g.itemsize)]

    return made_by(record([placed], run), view(placed, TOKENS * HIDDEN))


def _positions(graph: Graph) -> Tensor:
    numbers = graph.new(SEQUENCE, LONG)
    positions = graph.new(SEQUENCE, LONG)
    del numbers
    return positions


def _embedding(weight: Parameter, rows: Size, positions: Tensor | None = None) -> Tensor:
    """`embedding`, which saves its indices (token ids are the caller's); backward makes a gradient like the weight."""
    numel = weight.numel

    def run(saved: list[Tensor], gradients: Gradients) -> Gradients:
        g = gradients[0]
        assert g is not None
        return [graph_of(g).new(numel, g.itemsize)]

    graph = graph_of(weight)
    node = record([weight], run, [positions] if positions is not None else [])
    return made_by(node, graph.new(rows * HIDDEN, weight.itemsize))


def _rotary(graph: Graph, itemsize: int) -> tuple[Tensor, Tensor]:
    """Tables of cosine and sine, S x head_dim, worked out in fp32."""
    table = SEQUENCE * HEAD_DIM
    numbers = graph.new(SEQUENCE, FLOAT)
    frequencies = graph.new(SEQUENCE * HALF_HEAD, FLOAT)
    del numbers
    both = graph.new(table, FLOAT)
    cos = scale(graph.new(table, FLOAT))
    sin = scale(graph.new(table, FLOAT))
    out = to(cos, itemsize), to(sin, itemsize)
    del frequencies, both
    return out


def _blocks(model: _Model, hidden: Tensor, inputs: Inputs, segments: Sequence[Segment]) -> Tensor:
    words, graph = model.words, model.graph
    for number, segment in enumerate(segments):
        run = _segment_run(graph, words, inputs, segment.blocks, model.inner[number])
        with graph.within(segment.region):
            unit = model.units.blocks[number] if model.units is not None else None
            if unit is not None:
                hidden = unit.forward(hidden)
            if words.checkpointing == "none":
                hidden = run(hidden)
            else:
                hidden = checkpointed(run, hidden, words.checkpointing == "selective")
            if unit is not None:
                hidden = unit.end(hidden, reshard=words.sharding != "fsdp-no-reshard")
    return hidden


def _segment_run(
    graph: Graph, words: Words, inputs: Inputs, regions: Sequence[Region], weights: Sequence[Weights]
) -> Callable[[Tensor], Tensor]:
    def run(hidden: Tensor) -> Tensor:
        for region, own in zip(regions, weights, strict=True):
            with graph.within(region):
                hidden = block(hidden, own, inputs, words)
        return hidden

    return run
