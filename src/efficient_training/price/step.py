"""One training step in symbols: `efficient_training.run.Trainer.step` over a model of the given words.

Blocks that are alike are not run one by one, but by the segments of `efficient_training.price.plan`.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from .algebra import ONE, Size
from .autograd import Gradients, Graph, Parameter, Tensor
from .blocks import Inputs, Weights, block
from .checkpoint import checkpointed
from .head import divided, summed_loss
from .model import Model
from .norms import layer_norm, rms_norm
from .offload import ToHost
from .operators import FLOAT, LONG, add, graph_of, made_by, record, scale, to, view
from .packing import document_mask
from .plan import Segment
from .sizes import HALF_HEAD, HEAD_DIM, HIDDEN, SEQUENCE, TOKENS, TWO_BLOCKS, TWO_SEQUENCES
from .tape import Instant, Region, Storage
from .words import Words


class Run(NamedTuple):
    """All instants of a step: on the device, by component and, under FSDP2, by stream; and on the host."""

    instants: list[Instant]
    by_stream: list[Instant]
    on_host: list[Instant]


def run_step(words: Words, segments: Sequence[Segment]) -> Run:
    """Run the step on a tape."""
    graph = Graph(words.autocast)
    model = Model(graph, words, segments)
    held = [_constant(graph, size, name) for name, size in model.constants()]
    with graph.in_host_memory():
        held += [_constant(graph, size, name) for name, size in model.host_constants()]
    graph.hooks = ToHost() if words.offload_activations else None
    with graph.in_phase("forward"):
        loss = divided(_loss(model, segments))
    graph.hooks = None
    with graph.in_phase("backward"):
        model.begin_backward()
        if words.scaled:
            scaled = scale(loss, FLOAT)
            graph.backward(scaled, model.finish)
            del scaled
        else:
            graph.backward(loss, model.finish)
    with graph.in_phase("optimizer step"):
        model.step()
    by_stream = graph.instants(by_stream=True) if words.fsdp else []
    result = Run(graph.instants(), by_stream, graph.instants(on_host=True))
    del held, loss
    return result


def _constant(graph: Graph, size: Size, component: str) -> Tensor:
    tensor = graph.new(size, 1)
    assert tensor.storage is not None
    tensor.storage.entry.component = component
    return tensor


def _loss(model: Model, segments: Sequence[Segment]) -> Tensor:
    graph, words = model.graph, model.words
    model.begin()
    graph.autocast = graph.autocasting
    hidden = (_gpt2 if words.family == "gpt2" else _llama)(model, segments)
    loss = summed_loss(hidden, model.outer["embedding" if words.tied else "head"], words)
    graph.autocast = False
    graph.casts.clear()
    return model.end(loss)


def _llama(model: Model, segments: Sequence[Segment]) -> Tensor:
    """The base model: embedding, positions, rotary tables, blocks, norm. Positions, S longs, live until it returns.

    With packing each row has positions of its own, which are the caller's, and tables; and a mask may come before all.
    """
    graph, packing = model.graph, model.words.packing
    mask = document_mask(graph) if packing == "mask" else None
    embedded = _embedding(model.outer["embedding"], TOKENS)
    positions = _positions(graph) if packing == "none" else None
    tables = _rotary(graph, embedded.itemsize, SEQUENCE if packing == "none" else TOKENS)
    hidden = _blocks(model, lambda: embedded, Inputs(tables, positions, mask), segments)
    return rms_norm(hidden, model.outer["norm.weight"], TOKENS)


def _gpt2(model: Model, segments: Sequence[Segment]) -> Tensor:
    """The base model: embeddings of tokens, T x h, and of positions, S x h, both alive until it returns; their sum.

    With packing each row has positions of its own, and T x h of their embeddings.
    """
    graph, packed = model.graph, model.words.packing != "none"
    mask = document_mask(graph) if model.words.packing == "mask" else None
    embedded = _embedding(model.outer["embedding"], TOKENS)
    positions = None if packed else _positions(graph)
    placed = _embedding(model.outer["positions"], TOKENS if packed else SEQUENCE, positions)
    rows = (lambda: placed) if packed else (lambda: _for_each_sequence(placed))
    hidden = _blocks(model, lambda: add(embedded, rows()), Inputs(None, positions, mask), segments)
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
    numel, graph = weight.numel, graph_of(weight)
    indices = graph.outside(rows, LONG) if positions is None else positions

    def run(saved: list[Tensor], gradients: Gradients) -> Gradients:
        g = gradients[0]
        assert g is not None
        return [graph_of(g).new(numel, g.itemsize)]

    node = record([weight], run, [indices])
    return made_by(node, graph.new(rows * HIDDEN, weight.itemsize))


def _rotary(graph: Graph, itemsize: int, positions: Size) -> tuple[Tensor, Tensor]:
    """Tables of cosine and sine, a head_dim for each position, worked out in fp32."""
    table = positions * HEAD_DIM
    numbers = graph.new(positions, FLOAT)
    frequencies = graph.new(positions * HALF_HEAD, FLOAT)
    del numbers
    both = graph.new(table, FLOAT)
    cos = scale(graph.new(table, FLOAT))
    sin = scale(graph.new(table, FLOAT))
    out = to(cos, itemsize), to(sin, itemsize)
    del frequencies, both
    return out


def _blocks(model: Model, start: Callable[[], Tensor], inputs: Inputs, segments: Sequence[Segment]) -> Tensor:
    """All blocks, from what `start` makes: it is not held by the caller, and gone with the first block."""
    words, graph, hidden = model.words, model.graph, start()
    for number, segment in enumerate(segments):
        if number == len(segments) - 1:
            held = _input_of_one(graph, words)
        run = _segment_run(graph, words, inputs, segment.blocks, model.inner[number])
        with graph.within(segment.region):
            unit = model.units.blocks[number] if model.units is not None else None
            if unit is not None:
                hidden = unit.forward(hidden)
            policy = words.checkpointing
            hidden = run(hidden) if policy == "none" else checkpointed(run, hidden, policy)
            if unit is not None:
                hidden = unit.end(hidden, reshard=words.sharding != "fsdp-no-reshard")
    del held
    return hidden


def _input_of_one(graph: Graph, words: Words) -> Storage | None:
    """The input of a block that is alone, which here another has taken before the last (`plan.alike`).

    Where saved tensors stay on the device, it is one of them; and what Llama's first block gets, its caller holds.
    """
    if words.fsdp or words.family != "gpt2" or not words.offload_activations:
        return None
    with graph.within(Region(carries=ONE - TWO_BLOCKS)):
        return graph.allocate(TOKENS * HIDDEN * words.itemsize)


def _segment_run(
    graph: Graph, words: Words, inputs: Inputs, regions: Sequence[Region], weights: Sequence[Weights]
) -> Callable[[Tensor], Tensor]:
    def run(hidden: Tensor) -> Tensor:
        for region, own in zip(regions, weights, strict=True):
            with graph.within(region):
                hidden = block(hidden, own, inputs, words)
        return hidden

    return run
