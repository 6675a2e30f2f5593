"""DoRA in symbols: what `peft.tuners.lora.dora.DoraLinearLayer.forward` (peft 0.21) makes beside a layer, in its order.

Each forward pass takes the norm of a layer of i inputs and o outputs from whole matrices, through which nothing is
trained. At the height, where the weight and the scaled update are added, there are: what `B(A(I))` has saved for a
backward that never comes (the identity, i x i, and i x rank); the update, its scaled copy and the sum, i x o each; and
a copy of the weight, where it has to be cast or dequantized. They are in the dtype of x, and with peft's `Linear` that
is fp32; what `B(A(I))` has saved is 16-bit under autocast. (On CUDA, autocast takes norms in fp32, which is left out:
of 16-bit x, a vector is wider for a moment.)
"""

from collections.abc import Callable, Mapping

from .algebra import Size
from .autograd import Parameter, Tensor
from .matmul import linear
from .operators import FLOAT, add, alias, divide, graph_of, mul, scale, shift, subtract, to
from .sizes import RANK, TOKENS

Sides = tuple[Size, Size]
"""Inputs and outputs of a layer."""


def with_dora(
    x: Tensor, result: Tensor, name: str, weights: Mapping[str, Parameter], read: Callable[[], Tensor], sides: Sides
) -> Tensor:
    """`DoraLinearVariant.forward`: x (T, i) and the base layer's `result` (T, o) give `result` and DoRA's part of it.

    `read` gives the weight, dequantized where it is in NF4 (`dequantize_module_weight`).
    """
    return add(result, _magnified(x, result, name, weights, read, sides))


def _magnified(
    x: Tensor, result: Tensor, name: str, weights: Mapping[str, Parameter], read: Callable[[], Tensor], sides: Sides
) -> Tensor:
    """`(m - 1) * result + m * B(A(x)) * scaling`, m the magnitude over the norm, `result` without the bias."""
    first, second, width = weights[f"{name}.A"], weights[f"{name}.B"], sides[1]
    update = _lora_weight(first, second, sides)
    update = to(update, x.itemsize)
    weight = to(read(), x.itemsize)
    norm = _weight_norm(weight, update.detach(), width)
    factor = alias(divide(weights[f"{name}.magnitude"], norm))
    added = linear(linear(x, first, None, TOKENS, RANK), second, None, TOKENS, width)
    bias = weights.get(f"{name}.bias")
    if bias is not None:
        result = subtract(result, bias)
    return add(mul(shift(factor), result, spread=True), scale(mul(factor, added, spread=True)))


def _lora_weight(first: Parameter, second: Parameter, sides: Sides) -> Tensor:
    """`get_lora_weight`: `B(A(I)).T`, with a history, of the identity in fp32."""
    inputs, width = sides
    identity = graph_of(first).new(inputs * inputs, FLOAT)
    return alias(linear(linear(identity, first, None, inputs, RANK), second, None, inputs, width))


def _weight_norm(weight: Tensor, update: Tensor, width: Size) -> Tensor:
    """`get_weight_norm`: `linalg.norm(weight + scaling * update, dim=1)`, one number an output."""
    summed = add(weight, scale(update))
    return graph_of(weight).new(width, summed.itemsize)
