"""One training step in symbols: `efficient_training.run.Trainer.step` over a model of the given words.

Blocks that are alike are not run one by one: the first, one that stands for all between, and the last. Where there is
one block only, the one between stands for minus one, so that what first and last leave behind counts once in all.
Bytes change by the same amount from block to block, so that no peak lies between the first and the last.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from .algebra import ONE, Size, total
from .autograd import Gradients, Graph, Parameter, Tensor
from .blocks import Inputs, Weights, block, block_parameters
from .checkpoint import checkpointed
from .head import divided, mean_loss
from .norms import layer_norm, rms_norm
from .operators import FLOAT, LONG, add, graph_of, made_by, record, scale, to, view
from .optimizer import optimizer_step
from .sizes import (
    FURTHER_BLOCKS,
    FURTHER_IN_LAST,
    FURTHER_IN_SEGMENT,
    FURTHER_SEGMENTS,
    HALF_HEAD,
    HEAD_DIM,
    HIDDEN,
    POSITIONS,
    SEQUENCE,
    TOKENS,
    TWO_BLOCKS,
    TWO_IN_LAST,
    TWO_IN_SEGMENT,
    TWO_SEGMENTS,
    TWO_SEQUENCES,
    VOCABULARY,
)
from .tape import WHOLE, Instant, Region
from .words import Words

NOWHERE = Size.of(0)


class Segment(NamedTuple):
    """A segment of blocks, where and how often it is there, and the regions of its blocks."""

    region: Region
    blocks: Sequence[Region]


def alike(further: Size, two: Size) -> list[Region]:
    """The regions of `further` + 1 things that are alike: a first, one for those between, and a last.

    `two` is 1 where there are two or more, so that the first is not the last, and the last is handed something.
    """
    return [Region(there=two), Region(further - 1, NOWHERE, two), WHOLE]


def plan(checkpointing: str) -> list[Segment]:
    """The segments of a model in symbols.

    Without checkpointing, and with a selective one, each block is a segment. With full checkpointing a segment has
    several, and the last one may have fewer; so that the one before it is there by itself too, where there is one.
    """
    if checkpointing != "full":
        return [Segment(region, [WHOLE]) for region in alike(FURTHER_BLOCKS, TWO_BLOCKS)]
    whole, last = alike(FURTHER_IN_SEGMENT, TWO_IN_SEGMENT), alike(FURTHER_IN_LAST, TWO_IN_LAST)
    return [
        Segment(WHOLE, whole),
        Segment(Region(FURTHER_SEGMENTS - 2, NOWHERE), whole),
        Segment(Region(ONE, TWO_SEGMENTS), whole),
        Segment(WHOLE, last),
    ]


def run_step(words: Words, segments: Sequence[Segment]) -> list[Instant]:
    """Run the step on a tape, and return all its instants."""
    graph = Graph(words.autocast)
    model = _Model(graph, words)
    held = [_constant(graph, size, name) for name, size in model.constants()]
    with graph.in_phase("forward"):
        loss = divided(_loss(model, segments))
    with graph.in_phase("backward"):
        if words.scaled:
            scaled = scale(loss, FLOAT)
            graph.backward(scaled)
            del scaled
        else:
            graph.backward(loss)
    with graph.in_phase("optimizer step"):
        optimizer_step(graph, words, *model.table)
    result = graph.instants()
    del held, loss
    return result


def _constant(graph: Graph, size: Size, component: str) -> Tensor:
    tensor = graph.new(size, 1)
    assert tensor.storage is not None
    tensor.storage.entry.component = component
    return tensor


class _Model:
    """The parameters: before the blocks, of the one block that stands for all, and after them."""

    def __init__(self, graph: Graph, words: Words) -> None:
        self.graph, self.words = graph, words
        gpt2 = words.family == "gpt2"
        before = [("embedding", VOCABULARY * HIDDEN)] + ([("positions", POSITIONS * HIDDEN)] if gpt2 else [])
        after = [("norm.weight", HIDDEN)] + ([("norm.bias", HIDDEN)] if gpt2 else [])
        if not words.tied:
            after.append(("head", VOCABULARY * HIDDEN))
        self.table = (before, block_parameters(words), after)
        self.outer = {name: self._parameter(size) for name, size in before + after}

    def block_weights(self) -> Weights:
        """Fresh weights for one block; they have no storage here, but their gradients have."""
        return {name: self._parameter(size) for name, size in self.table[1]}

    def _parameter(self, numel: Size) -> Parameter:
        return Parameter(self.graph, numel, self.words.itemsize, self.words.accumulating)

    def constants(self) -> list[tuple[str, Size]]:
        """What is alive throughout: weights and buffers (two of rotary frequencies), AdamW's two moments and its step
        of each parameter, and under accumulation the gradients."""
        before, block, after = self.table
        parts = [(size, ONE) for _, size in before + after] + [(size, FURTHER_BLOCKS + 1) for _, size in block]
        weights = total(size * times for size, times in parts) * self.words.itemsize
        buffers = Size.of(0) if self.words.family == "gpt2" else HALF_HEAD * (2 * FLOAT)
        steps = total(times for _, times in parts) * FLOAT
        out = [("weights", weights + buffers), ("optimizer state", weights * 2 + steps)]
        return [*out, ("gradients", weights)] if self.words.accumulating else out


def _loss(model: _Model, segments: Sequence[Segment]) -> Tensor:
    graph, words = model.graph, model.words
    graph.autocast = graph.autocasting
    hidden = (_gpt2 if words.family == "gpt2" else _llama)(model, segments)
    loss = mean_loss(hidden, model.outer["embedding" if words.tied else "head"], words)
    graph.autocast = False
    graph.casts.clear()
    return loss


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
    for segment in segments:
        weights = [model.block_weights() for _ in segment.blocks]
        run = _segment_run(graph, words, inputs, segment.blocks, weights)
        with graph.within(segment.region):
            if words.checkpointing == "none":
                hidden = run(hidden)
            else:
                hidden = checkpointed(run, hidden, words.checkpointing == "selective")
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
