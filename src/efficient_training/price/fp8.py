"""Linear layers in fp8 in symbols, as torchao's `Float8Linear` runs them, an operator at a time.

x has `rows` vectors of `inner` elements, the weight is `width` x `inner`. Saved for backward are x and the weight, as
without fp8; what is in fp8 is made for each product, and gone after it.
"""

from collections.abc import Callable

from .algebra import ONE, Size
from .autograd import Gradients, Parameter, Tensor
from .operators import FLOAT, HALF, add, alias, autocast_input, graph_of, made_by, record, to

FP8 = 1
"""Bytes of an element in fp8."""


def float8_linear(
    x: Tensor, weight: Parameter, bias: Parameter | None, rows: Size, inner: Size, width: Size, scaling: str
) -> Tensor:
    """`Float8Linear.forward`: autocast's cast of x, `matmul_with_hp_or_float8_args`, and the bias added out of place.

    `scaling`: a recipe's `fp8`. A `torch.autograd.Function` saves its tensors when its forward is done.
    """
    x = autocast_input(x)
    turned = alias(weight)
    node = record([x, turned], _backward(rows, inner, width, scaling))
    out = made_by(node, _forward(x, turned, rows, width, scaling))
    if node is not None:
        for tensor in (x, turned):
            node.save(graph_of(x), tensor)
    return out if bias is None else add(out, to(bias, HALF))


def _forward(x: Tensor, weight: Tensor, rows: Size, width: Size, scaling: str) -> Tensor:
    """Both factors in fp8, with a scale each, or one a row of the result and one a column; and their product.

    The product alone is one operator on tensors in fp8, which selective checkpointing keeps.
    """
    tensorwise = scaling == "tensorwise"
    left = _Float8(x, ONE if tensorwise else rows)
    right = _Float8(weight, ONE if tensorwise else width)
    (out,) = graph_of(x).keep(lambda: [_product(left, right, rows * width)], linear=True)
    return out


def _backward(rows: Size, inner: Size, width: Size, scaling: str) -> Callable[[list[Tensor], Gradients], Gradients]:
    """`matmul_with_hp_or_float8_args.backward`: everything is cast anew, the gradient for each of its two products."""
    tensorwise, by_rows = scaling == "tensorwise", scaling == "rowwise"

    def run(saved: list[Tensor], gradients: Gradients) -> Gradients:
        g = gradients[0]
        assert g is not None
        x, weight = saved
        graph = graph_of(g)
        left = _Float8(g, ONE if tensorwise else rows)
        right = _Float8(weight, inner if by_rows else ONE)
        columns = None if tensorwise else inner
        # The weight was turned for forward, and one layout serves one product only.
        x_gradient = _product(left, right, rows * inner, copied=[right], rescaled=columns)
        if scaling == "rowwise-gw-hp":
            return [x_gradient, graph.new(weight.numel, g.itemsize)]
        other_left = _Float8(g, width if by_rows else ONE)
        other_right = _Float8(x, inner if by_rows else ONE)
        copied = [other_left, other_right]
        return [x_gradient, _product(other_left, other_right, weight.numel, copied, columns)]

    return run


class _Float8:
    """`hp_tensor_to_float8_dynamic`: a tensor in fp8 and its `scales`, in fp32.

    At its height it takes 9 bytes an element and the scales: the tensor scaled in fp32, the same clamped, and the
    result. Earlier it takes less, and so is left out: at most 8 bytes an element (in fp32, and scaled), or 34 a scale
    (`tensor_to_scale` works in fp64), which has 16 elements or more.
    """

    def __init__(self, tensor: Tensor, scales: Size) -> None:
        graph = graph_of(tensor)
        self.scale = graph.new(scales, FLOAT)
        scaled = graph.new(tensor.numel, FLOAT)
        clamped = graph.new(tensor.numel, FLOAT)
        self.data = graph.new(tensor.numel, FP8)
        del clamped, scaled


def _product(
    left: _Float8,
    right: _Float8,
    numel: Size,
    copied: list[_Float8] | None = None,
    rescaled: Size | None = None,
) -> Tensor:
    """`float8_mm`: copies of the factors that lie the wrong way round, reciprocals of the scales, and `_scaled_mm`.

    `rescaled`: the columns of the result where it has scales by row and no fast accumulation, so that torchao does not
    give them to `_scaled_mm`, but multiplies the result in place, by a tensor in fp32 of its size. A single scale of
    the right factor is repeated for it.
    """
    graph = graph_of(left.data)
    turned = [graph.new(factor.data.numel, FP8) for factor in copied or []]
    scale = right.scale
    if rescaled is not None and scale.numel != rescaled:
        scale = graph.new(rescaled, FLOAT)
    left_inverse = graph.new(left.scale.numel, FLOAT)
    right_inverse = graph.new(scale.numel, FLOAT)
    if rescaled is None:
        return graph.new(numel, HALF)
    both = graph.new(numel, FLOAT)
    left_inverse = graph.new(ONE, FLOAT)
    right_inverse = graph.new(ONE, FLOAT)
    out = graph.new(numel, HALF)
    del both, turned, left_inverse, right_inverse
    return out
