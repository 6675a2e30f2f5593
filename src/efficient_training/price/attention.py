"""Attention in symbols, through each of the kernels, as `efficient_training.attention` runs them: causal, or masked."""

from collections.abc import Sequence
from dataclasses import dataclass

from .algebra import Size
from .autograd import Gradients, Tensor
from .operators import (
    FLOAT,
    LONG,
    alias,
    back_to,
    clone,
    cut,
    graph_of,
    made_by,
    record,
    repeat_heads,
    scale,
    shift,
    to,
    view,
)
from .packing import numbers, padded_numbers, varlen
from .sizes import BATCH, HEADS, KV_HEADS, PADDED_HEAD_DIM, PADDED_SEQUENCE, SEQUENCE, TOKENS, Q


@dataclass(frozen=True)
class Kernel:
    """Which kernel (`varlen`: the one that takes lengths), and what its copies depend on.

    `grouped`: queries share key heads. `padded`: head_dim is padded for flash attention. `alone`, `kv_alone`: there is
    one head, or one key head, so that heads first and tokens first are one order in memory. `matrices`: math attention
    on one sequence, or one head, whose heads are a batch of matrices as they stand.
    """

    name: str
    grouped: bool
    padded: bool
    alone: bool
    kv_alone: bool
    matrices: bool


def attention(query: Tensor, key: Tensor, value: Tensor, kernel: Kernel, masked: bool = False) -> Tensor:
    """Attention over (tokens, heads x head_dim), its result tokens first: a copy, if the kernel's is not.

    `masked`: by a mask of booleans, which is made numbers for each call.
    """
    out = _attention(query, key, value, kernel, masked)
    return clone(out) if (not kernel.alone if kernel.name == "math" else kernel.padded) else out


def _attention(query: Tensor, key: Tensor, value: Tensor, kernel: Kernel, masked: bool) -> Tensor:
    """Autocast casts the inputs; kernels but flash get shared keys repeated, which flash alone takes as they are."""
    graph = graph_of(query)
    if graph.autocast:
        query, key, value = to(query, 2), to(key, 2), to(value, 2)
    if kernel.name == "varlen":
        return varlen(query, key, value, kernel.padded)
    if kernel.grouped and kernel.name != "flash":
        key, value = (repeat_heads(tensor, TOKENS * Q) for tensor in (key, value))
    if kernel.name == "math":
        return _math(query, key, value, kernel.matrices, numbers(graph, query.itemsize) if masked else None)
    if kernel.name == "efficient":
        # Statistics of each query, in fp32, to a multiple of 32 queries; seed and offset of a generator not used.
        bias = padded_numbers(graph, query.itemsize) if masked else []
        statistics = [BATCH * HEADS * PADDED_SEQUENCE * FLOAT, Size.of(LONG), Size.of(LONG)]
        return _fused(query, key, value, statistics, bias)
    statistics = [BATCH * HEADS * SEQUENCE * FLOAT, Size.of(2 * LONG), Size.of(LONG)]
    if not kernel.padded:
        return _fused(query, key, value, statistics)
    query, key, value = _pad(query, HEADS), _pad(key, KV_HEADS), _pad(value, KV_HEADS)
    return cut(_fused(query, key, value, statistics), TOKENS * Q)


def _fused(query: Tensor, key: Tensor, value: Tensor, statistics: list[Size], bias: Sequence[Tensor] = ()) -> Tensor:
    """One operator, which saves its inputs and results; its backward makes three gradients, tokens first."""
    sizes = [tensor.numel for tensor in (query, key, value)]

    def run(saved: list[Tensor], gradients: Gradients) -> Gradients:
        g = gradients[0]
        assert g is not None
        return [graph_of(g).new(size, g.itemsize) for size in sizes]

    graph = graph_of(query)
    node = record([query, key, value], run, [query, key, value, *bias])
    out, *rest = graph.keep(
        lambda: [graph.new(query.numel, query.itemsize), *(graph.new(size, 1) for size in statistics)]
    )
    if node is not None:
        for tensor in (out, *rest):
            node.save(graph, tensor)
    return made_by(node, out)


def _pad(tensor: Tensor, heads: Size) -> Tensor:
    """`pad` of each head to a multiple of 8, for flash attention; backward cuts, which copies."""
    node = record([tensor], back_to(tensor.numel))
    return made_by(node, graph_of(tensor).new(TOKENS * heads * PADDED_HEAD_DIM, tensor.itemsize))


def _math(query: Tensor, key: Tensor, value: Tensor, matrices: bool, mask: Tensor | None) -> Tensor:
    """Torch's `_scaled_dot_product_attention_math`: 16-bit inputs in fp32, scores of all pairs, and a mask of them.

    The causal mask is made here, in fp32; `mask`, in numbers of the inputs' dtype, stands in its place if given.
    Query and key are each multiplied by the root of the scale. A tensor whose memory is tokens first is copied to be a
    batch of matrices, one a head. Softmax is saved; masked and plain scores are not.
    """
    graph, itemsize = graph_of(query), query.itemsize
    pairs = SEQUENCE * SEQUENCE
    query, key, value = to(query, FLOAT), to(key, FLOAT), to(value, FLOAT)
    scaled_query = scale(query)
    if mask is None:
        ones = graph.new(pairs, 1)
        lower = graph.new(pairs, 1)
        del ones
        low, high = graph.new(Size.of(1), FLOAT), graph.new(Size.of(1), FLOAT)
        mask = graph.new(pairs, FLOAT)
        del lower, low, high
    scaled_key = scale(key)
    scores = _bmm(scaled_query, scaled_key, BATCH * HEADS * pairs, matrices)
    del scaled_key
    masked = shift(scores)
    del scores
    weights = _softmax(masked)
    del masked
    returned = graph.new(weights.numel, itemsize) if itemsize != FLOAT else None
    out = to(_bmm(weights, value, TOKENS * Q, matrices), itemsize)
    del returned, mask
    return out


def _bmm(left: Tensor, right: Tensor, numel: Size, matrices: bool) -> Tensor:
    """`matmul` of batches of matrices: `bmm`, which saves each for the other's gradient; backward makes the right one's
    first, and none that is not needed."""
    lefts, rights = _as_matrices(left, matrices), _as_matrices(right, matrices)
    sizes = (left.numel, right.numel)
    needs = (left.node is not None, right.node is not None)
    saved = ([lefts] if needs[1] else []) + ([rights] if needs[0] else [])

    def run(saved: list[Tensor], gradients: Gradients) -> Gradients:
        g = gradients[0]
        assert g is not None
        graph = graph_of(g)
        right_gradient = graph.new(sizes[1], g.itemsize, heads_first=True) if needs[1] else None
        return [graph.new(sizes[0], g.itemsize, heads_first=True) if needs[0] else None, right_gradient]

    graph = graph_of(left)
    node = record([lefts, rights], run, saved)
    (out,) = graph.keep(lambda: [graph.new(numel, left.itemsize, heads_first=True)])
    out = made_by(node, out)
    return made_by(record([out], _pass if matrices else _to_heads_first), view(out, heads_first=True))


def _pass(saved: list[Tensor], gradients: Gradients) -> Gradients:
    return [gradients.pop()]


def _to_heads_first(saved: list[Tensor], gradients: Gradients) -> Gradients:
    g = gradients.pop()
    assert g is not None
    return [g if g.heads_first else graph_of(g).new(g.numel, g.itemsize, heads_first=True)]


def _as_matrices(tensor: Tensor, matrices: bool) -> Tensor:
    return alias(tensor) if tensor.heads_first or matrices else clone(tensor, heads_first=True)


def _softmax(scores: Tensor) -> Tensor:
    """`_safe_softmax`, which saves its result; `_softmax_backward_data` makes one."""

    def run(saved: list[Tensor], gradients: Gradients) -> Gradients:
        g = gradients[0]
        assert g is not None
        return [graph_of(g).new(g.numel, g.itemsize, heads_first=True)]

    graph = graph_of(scores)
    node = record([scores], run)
    out = graph.new(scores.numel, scores.itemsize, heads_first=True)
    if node is not None:
        node.save(graph, out)
    return made_by(node, out)
