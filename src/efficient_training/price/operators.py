"""torch's operators in symbols: what each allocates, and saves for backward, and what its backward allocates.

Formulas of backward, and the order of what they allocate, are those of torch's `tools/autograd/derivatives.yaml`; in
backward functions `g` is the gradient that comes in. Where an operator broadcasts, the engine sums its gradients.
"""

from collections.abc import Sequence

from .algebra import Size
from .autograd import Backward, Gradients, Graph, Node, Parameter, Tensor

HALF, FLOAT, LONG = 2, 4, 8
"""Bytes of one element in bf16 or fp16, in fp32, and in int64."""


def graph_of(tensor: Tensor) -> Graph:
    """The graph that `tensor` is on."""
    assert isinstance(tensor.tape, Graph)
    return tensor.tape


def like(tensor: Tensor, numel: Size | None = None, itemsize: int | None = None) -> Tensor:
    """A new tensor of `tensor`'s shape and dtype, unless said otherwise, without history."""
    wide = numel is None and tensor.storage is not None and tensor.storage.entry.wide
    size = tensor.numel if numel is None else numel
    return graph_of(tensor).new(size, itemsize or tensor.itemsize, wide, tensor.heads_first)


def view(tensor: Tensor, numel: Size | None = None, heads_first: bool = False) -> Tensor:
    """A look at the storage of `tensor`, without history."""
    return Tensor(tensor.tape, tensor.storage, tensor.numel if numel is None else numel, tensor.itemsize, heads_first)


def made_by(node: Node | None, tensor: Tensor, output: int = 0) -> Tensor:
    """`tensor`, as the result of `node`."""
    tensor.node, tensor.output = node, output
    return tensor


def record(inputs: Sequence[Tensor | None], run: object, saved: Sequence[Tensor] = ()) -> Node | None:
    """The node of an operator, or none where no input needs a gradient."""
    needed = [tensor for tensor in inputs if tensor is not None and tensor.node is not None]
    return Node(graph_of(needed[0]), inputs, run, saved) if needed else None  # type: ignore[arg-type]


def alias(tensor: Tensor) -> Tensor:
    """A view (`view`, `t`, `transpose`, `unsqueeze`), whose backward is one as well."""
    return made_by(record([tensor], _pass), view(tensor, heads_first=tensor.heads_first))


def _pass(saved: list[Tensor], gradients: Gradients) -> Gradients:
    return [gradients.pop()]


def split_heads(tensor: Tensor, alone: bool) -> Tensor:
    """`view` as (batch, tokens, heads, head_dim), transposed; backward copies a gradient that came back heads first.

    `alone`: there is one head, so that nothing needs copying.
    """

    def run(saved: list[Tensor], gradients: Gradients) -> Gradients:
        g = gradients.pop()
        assert g is not None
        return [graph_of(g).new(g.numel, g.itemsize) if g.heads_first and not alone else g]

    return made_by(record([tensor], run), view(tensor))


def add(left: Tensor, right: Tensor) -> Tensor:
    """`left + right`, with type promotion; both get the gradient itself."""
    node = record([left, right], lambda saved, gradients: [gradients[0], gradients[0]])
    out = like(left, itemsize=max(left.itemsize, right.itemsize))
    return made_by(node, out)


def scale(tensor: Tensor, itemsize: int | None = None) -> Tensor:
    """`tensor * number` or `tensor / number`; backward scales the gradient. `itemsize`: of the result."""
    return made_by(record([tensor], _like_gradient), like(tensor, itemsize=itemsize))


def neg(tensor: Tensor) -> Tensor:
    """`-tensor`."""
    return made_by(record([tensor], _like_gradient), like(tensor))


def shift(tensor: Tensor) -> Tensor:
    """`tensor + number`; the gradient passes."""
    return made_by(record([tensor], _pass), like(tensor))


def _like_gradient(saved: list[Tensor], gradients: Gradients) -> Gradients:
    g = gradients[0]
    assert g is not None
    return [like(g)]


def subtract(left: Tensor, constant: Tensor) -> Tensor:
    """`left - constant`, which is broadcast and needs no gradient; the gradient passes."""
    return made_by(record([left], _pass), like(left, itemsize=max(left.itemsize, constant.itemsize)))


def divide(tensor: Tensor, constant: Tensor) -> Tensor:
    """`tensor / constant`, which is saved, and needs no gradient; backward divides the gradient by it."""
    return made_by(record([tensor], _like_gradient, [constant]), like(tensor))


def mul(left: Tensor, right: Tensor, spread: bool = False) -> Tensor:
    """`left * right`, the smaller broadcast; saves each side that the other's gradient, `g * side`, needs.

    `spread`: the left one is the smaller, as it is where it is a parameter.
    """
    needs = [left.node is not None, right.node is not None]
    saved = ([right] if needs[0] else []) + ([left] if needs[1] else [])
    whole = right if spread or isinstance(left, Parameter) else left
    itemsize = max(left.itemsize, right.itemsize)

    def run(saved: list[Tensor], gradients: Gradients) -> Gradients:
        g = gradients[0]
        assert g is not None
        return [like(g) if needed else None for needed in needs]

    node = record([left, right], run, saved)
    return made_by(node, graph_of(whole).new(whole.numel, itemsize, heads_first=whole.heads_first))


def power(tensor: Tensor) -> Tensor:
    """`tensor ** n`. Saves its input; backward `g * (n * tensor ** (n - 1))` makes three."""

    def run(saved: list[Tensor], gradients: Gradients) -> Gradients:
        powered = like(saved[0])
        scaled = like(powered)
        out = like(scaled)
        del powered, scaled
        return [out]

    return made_by(record([tensor], run, [tensor]), like(tensor))


def mean(tensor: Tensor, rows: Size) -> Tensor:
    """The mean over the last dimension, kept as one: `rows` elements; backward spreads `g / width`."""
    numel = tensor.numel

    def run(saved: list[Tensor], gradients: Gradients) -> Gradients:
        g = gradients[0]
        assert g is not None
        return [like(g, numel)]

    return made_by(record([tensor], run), like(tensor, rows))


def rsqrt(tensor: Tensor) -> Tensor:
    """`1 / sqrt(tensor)`. Saves its result; backward `-0.5 * g * result ** 3` makes three."""

    def run(saved: list[Tensor], gradients: Gradients) -> Gradients:
        cubed = like(saved[0])
        scaled = like(saved[0])
        out = like(saved[0])
        del cubed, scaled
        return [out]

    return _saving_result(tensor, run)


def tanh(tensor: Tensor) -> Tensor:
    """`tanh`, which saves its result; `tanh_backward` makes one."""
    return _saving_result(tensor, _like_gradient)


def _saving_result(tensor: Tensor, run: object) -> Tensor:
    node = record([tensor], run)
    out = like(tensor)
    if node is not None:
        node.save(graph_of(tensor), out)
    return made_by(node, out)


def silu(tensor: Tensor) -> Tensor:
    """`silu`, which saves its input; `silu_backward` makes one."""
    return made_by(record([tensor], _like_gradient, [tensor]), like(tensor))


def to(tensor: Tensor, itemsize: int) -> Tensor:
    """`tensor.to(dtype)`, nothing where it has that dtype; backward casts the gradient back."""
    if tensor.itemsize == itemsize:
        return tensor
    before = tensor.itemsize

    def run(saved: list[Tensor], gradients: Gradients) -> Gradients:
        g = gradients[0]
        assert g is not None
        return [like(g, itemsize=before)]

    return made_by(record([tensor], run), like(tensor, itemsize=itemsize))


def clone(tensor: Tensor, heads_first: bool = False) -> Tensor:
    """A copy (`clone`, `contiguous`); the gradient passes."""
    node = record([tensor], _pass)
    return made_by(node, graph_of(tensor).new(tensor.numel, tensor.itemsize, heads_first=heads_first))


def back_to(numel: Size, heads_first: bool = True) -> Backward:
    """A backward that makes one gradient of `numel` elements, heads first unless said otherwise."""

    def run(saved: list[Tensor], gradients: Gradients) -> Gradients:
        g = gradients[0]
        assert g is not None
        return [graph_of(g).new(numel, g.itemsize, heads_first=heads_first)]

    return run


def repeat_heads(tensor: Tensor, numel: Size) -> Tensor:
    """`repeat_interleave` of heads: `expand`, then `clone` to `numel` elements; backward sums, heads first."""
    node = record([tensor], back_to(tensor.numel))
    return made_by(node, graph_of(tensor).new(numel, tensor.itemsize, heads_first=True))


def cut(tensor: Tensor, numel: Size) -> Tensor:
    """`numel` elements of a tensor, as a view; `slice_backward` makes the whole, zeros in the rest, heads first."""
    return made_by(record([tensor], back_to(tensor.numel)), view(tensor, numel))


def concatenate(left: Tensor, right: Tensor, numel: Size) -> Tensor:
    """`cat` along the last dimension, `numel` elements in all; the gradients are views."""
    sizes = (left.numel, right.numel)

    def run(saved: list[Tensor], gradients: Gradients) -> Gradients:
        g = gradients[0]
        assert g is not None
        return [view(g, size) for size in sizes]

    node = record([left, right], run)
    return made_by(node, graph_of(left).new(numel, left.itemsize))


def autocast_weight(weight: Parameter) -> Tensor:
    """Under autocast, the weight's 16-bit cast, kept in a cache until autocast ends; else the weight itself.

    The cache takes no cast of a weight that needs no gradient: each use makes one.
    """
    graph = graph_of(weight)
    if not graph.autocast or weight.itemsize == HALF:
        return weight
    if weight.node is None:
        return to(weight, HALF)
    if weight not in graph.casts:
        cast = to(weight, HALF)
        assert cast.storage is not None
        cast.storage.entry.lasting = True
        graph.casts[weight] = cast
    return graph.casts[weight]


def autocast_input(tensor: Tensor) -> Tensor:
    """Under autocast, an operator's input in 16 bits: a cast of its own for each operator; else the input."""
    return to(tensor, HALF) if graph_of(tensor).autocast else tensor
