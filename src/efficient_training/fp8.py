"""Scaling for 8-bit and 4-bit floating point, in a few lines each, and what it costs.

A *scale* is what values are multiplied by before they are cast, so that the largest magnitude, the *amax*, comes to
the format's largest number; `torch._scaled_mm` takes its reciprocal. One scale for a tensor (current or delayed), for
a row, or for a block of consecutive elements:

- MX: blocks of 32, each with a power of two in E8M0 (OCP Microscaling Formats specification 1.0).
- NVFP4: blocks of 16 values in E2M1, each with a scale in E4M3, and one more scale, in fp32, for the tensor.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from .errors import UserError

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
MX_BLOCK, NVFP4_BLOCK = 32, 16
E8M0_BIAS = 127
E2M1_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""The magnitudes of E2M1, by the three bits under the sign."""
NVFP4_SMALLEST_SCALE = 2.0**-6
"""Below it (E4M3's smallest normal number) torchao does not let a block's scale go, so that it is never zero."""

Recipe = Literal["tensor", "row", "block", "mxfp8", "nvfp4"]
CAPABILITY: dict[Recipe, tuple[int, int]] = {
    "tensor": (8, 9), "row": (8, 9), "block": (9, 0), "mxfp8": (10, 0), "nvfp4": (10, 0),
}  # fmt: skip
"""The compute capability from which a device multiplies with it: transformer_engine/pytorch/quantization.py 2.20.2
(row: torchao/float8/inference.py 0.18.0). "block" also needs CUDA 12.9; Transformer Engine refuses mxfp8 from 12.0."""


def require(recipe: Recipe, capability: tuple[int, int] | None) -> None:
    """Refuse a recipe that a device of this compute capability (`None`: a CPU) does not multiply with."""
    if recipe not in CAPABILITY:
        raise UserError(f"fp8: no recipe {recipe!r}; known: {', '.join(CAPABILITY)}")
    need = CAPABILITY[recipe]
    if capability is None or capability < need:
        found = "a CPU" if capability is None else f"{capability[0]}.{capability[1]}"
        raise UserError(
            f"fp8 recipe {recipe}: needs compute capability {need[0]}.{need[1]}, found {found}; emulate it, or use bf16"
        )


def saturate(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """`x` in `dtype`, rounded to nearest even; what is beyond its largest number becomes that number.

    A plain cast does not saturate in torch up to 2.11. NaN stays NaN. Raises `UserError` on any other dtype.
    """
    if dtype not in (E4M3, E5M2):
        raise UserError(f"fp8: {dtype} is not supported; use torch.float8_e4m3fn or torch.float8_e5m2")
    largest = torch.finfo(dtype).max
    return x.clamp(-largest, largest).to(dtype)


def amax_of(x: torch.Tensor, dim: int | None = None) -> torch.Tensor:
    """The largest magnitude in fp32, of all of `x` or along `dim` (kept). Refuses NaN and infinity."""
    amax = (x.abs().max() if dim is None else x.abs().amax(dim, keepdim=True)).float()
    if not torch.isfinite(amax).all():
        raise UserError("fp8: amax is NaN or infinite, no scale fits it; find the step and the layer that made it")
    return amax


def scale_of(amax: torch.Tensor, dtype: torch.dtype, *, margin: int = 0, power_of_two: bool = False) -> torch.Tensor:
    """fp32 scale that takes `amax` to the largest number of `dtype`, 2**margin below it; or the power of two below.

    The quotient is taken in fp64 and an amax under 1e-12 counts as that, both as in torchao.
    """
    scale = (torch.finfo(dtype).max / amax.double().clamp(min=1e-12) / 2**margin).float()
    return torch.exp2(torch.floor(torch.log2(scale))) if power_of_two else scale


@dataclass(frozen=True)
class Scaled:
    """A tensor in fp8: `data`, and the `scale` that it was multiplied by, which broadcasts against it."""

    data: torch.Tensor
    scale: torch.Tensor

    def dequantize(self) -> torch.Tensor:
        """The fp32 values that it stands for."""
        values: torch.Tensor = self.data.float() / self.scale
        return values


def per_tensor(x: torch.Tensor, dtype: torch.dtype = E4M3, *, scale: torch.Tensor | None = None) -> Scaled:
    """One scale: from the tensor itself (current scaling), or one that is given, which may be wrong."""
    scale = scale_of(amax_of(x), dtype) if scale is None else scale
    return Scaled(saturate(x.float() * scale, dtype), scale)


def per_row(x: torch.Tensor, dtype: torch.dtype = E4M3, *, dim: int = -1, power_of_two: bool = False) -> Scaled:
    """A scale for each line along `dim`, which must be the dimension that the product sums over."""
    scale = scale_of(amax_of(x, dim), dtype, power_of_two=power_of_two)
    return Scaled(saturate(x.float() * scale, dtype), scale)


@dataclass
class DelayedScale:
    """Scale a tensor by the amax of *earlier* steps, so that one pass casts it: Transformer Engine's DelayedScaling.

    The largest of the last `length` amaxes sets the next scale; before the first the scale is one. An amax of zero
    leaves the scale as it is.
    """

    dtype: torch.dtype = E4M3
    length: int = 1024
    margin: int = 0
    history: list[float] = field(default_factory=list)
    scale: torch.Tensor = field(default_factory=lambda: torch.tensor(1.0))

    def __post_init__(self) -> None:
        if self.length < 1:
            raise UserError(f"fp8: the amax history needs a length of at least 1, got {self.length}")

    def quantize(self, x: torch.Tensor) -> Scaled:
        """Cast with the scale that stands, then note this tensor's amax for the next time."""
        result = per_tensor(x, self.dtype, scale=self.scale)
        self.history = [*self.history, amax_of(x).item()][-self.length :]
        if largest := max(self.history):
            self.scale = scale_of(torch.tensor(largest), self.dtype, margin=self.margin)
        return result


@dataclass(frozen=True)
class Blocked:
    """Blocks of consecutive elements: `data` shaped as the original (fp8, or uint8 codes of 4 bits), and their scales.

    `exponents` (MX: uint8, E8M0) or `scales` (NVFP4: E4M3, with `global_scale`) have one element a block.
    """

    data: torch.Tensor
    block: int
    exponents: torch.Tensor | None = None
    scales: torch.Tensor | None = None
    global_scale: torch.Tensor | None = None

    def dequantize(self) -> torch.Tensor:
        """The fp32 values that it stands for."""
        if self.exponents is not None:
            factor = torch.exp2(self.exponents.double() - E8M0_BIAS)
            values = self.data.double()
        else:
            assert self.scales is not None
            assert self.global_scale is not None
            factor = self.scales.double() * self.global_scale.double()
            magnitudes = torch.tensor(E2M1_VALUES, dtype=torch.float64)[(self.data & 7).long()]
            values = torch.where(self.data >= 8, -magnitudes, magnitudes)
        restored: torch.Tensor = (values.unflatten(-1, (-1, self.block)) * factor[..., None]).flatten(-2).float()
        return restored


def mx(x: torch.Tensor, dtype: torch.dtype = E4M3) -> Blocked:
    """MXFP8: for each 32 elements of the last dimension 2**(floor(log2(amax)) - emax), emax that of `dtype`'s largest.

    So a block's amax comes to between 1 and 2 times the format's top power of two, and may saturate (specification,
    section 6.3). Raises `UserError` where 32 does not divide the last dimension.
    """
    rows = _rows(x, MX_BLOCK)
    amax = amax_of(rows, -1)
    top = 8 if dtype == E4M3 else 15
    # frexp gives a mantissa in [1/2, 1), so its exponent is one above floor(log2); a block of zeros takes the smallest.
    exponent = torch.where(amax > 0, torch.frexp(amax).exponent - 1, -E8M0_BIAS) - top
    exponent = exponent.clamp(-E8M0_BIAS, E8M0_BIAS)
    data = saturate((rows.double() / torch.exp2(exponent.double())).float(), dtype)
    return Blocked(data.flatten(-2), MX_BLOCK, exponents=(exponent + E8M0_BIAS).to(torch.uint8).squeeze(-1))


def nvfp4(x: torch.Tensor) -> Blocked:
    """NVFP4: E2M1, for each 16 elements a scale in E4M3 (amax / 6), all of them over one fp32 scale, amax / (448 * 6).

    Rounded to nearest even; the training recipes' stochastic rounding and Hadamard transform are left out.
    Raises `UserError` where 16 does not divide the last dimension.
    """
    rows = _rows(x, NVFP4_BLOCK)
    amax = amax_of(rows, -1)
    # A tensor of zeros gets the scale one: any would do.
    total = torch.where(amax.max() > 0, amax.max() / (448 * 6), 1.0)
    scales = (amax / 6 / total).clamp(NVFP4_SMALLEST_SCALE, 448).to(E4M3)
    scaled = rows * ((1 / total) / scales.float())
    magnitudes = torch.tensor(E2M1_VALUES)
    middles = (magnitudes[:-1] + magnitudes[1:]) / 2
    lower, upper = torch.bucketize(scaled.abs(), middles), torch.bucketize(scaled.abs(), middles, right=True)
    codes = torch.where(lower % 2 == 0, lower, upper)  # they differ on a middle only, where the even code wins
    codes = codes + 8 * torch.signbit(scaled)
    return Blocked(codes.to(torch.uint8).flatten(-2), NVFP4_BLOCK, scales=scales.squeeze(-1), global_scale=total)


def _rows(x: torch.Tensor, block: int) -> torch.Tensor:
    if x.shape[-1] % block:
        raise UserError(f"fp8: blocks of {block} do not divide the last dimension, {x.shape[-1]}; pad it")
    rows: torch.Tensor = x.float().unflatten(-1, (-1, block))
    return rows


Quantize = Callable[[torch.Tensor, torch.dtype], torch.Tensor]


def current(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """`x` through fp8 and back, by a scale of its own."""
    return per_tensor(x, dtype).dequantize()


class HybridLinear(torch.autograd.Function):
    """x @ w.T in emulated fp8: operands E4M3 in forward, the gradient of the output E5M2 in both products of backward.

    A product of two fp8 numbers is exact in fp32, so only the order of the sums differs from `torch._scaled_mm`. What
    is saved for backward are the fp8 operands, a quarter of the bytes of fp32 ones.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor, backward_dtype: torch.dtype) -> torch.Tensor:
        """x (tokens, in), w (out, in); returns (tokens, out) in fp32."""
        x8, w8 = per_tensor(x), per_tensor(w)
        ctx.save_for_backward(x8.data, x8.scale, w8.data, w8.scale)
        ctx.backward_dtype = backward_dtype
        return x8.dequantize() @ w8.dequantize().T

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        """Gradients of x and of w."""
        x, sx, w, sw = ctx.saved_tensors
        g = current(gradients[0], ctx.backward_dtype)
        return g @ Scaled(w, sw).dequantize(), g.T @ Scaled(x, sx).dequantize(), None


class OneLayoutLinear(HybridLinear):
    """`HybridLinear` for a device that multiplies in one layout, for which backward's operands are transposed copies.

    Of the input the transposed copy alone is kept, of the weight both, whose first serves the next forward as well.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor, backward_dtype: torch.dtype) -> torch.Tensor:
        """x (tokens, in), w (out, in); returns (tokens, out) in fp32."""
        x8, w8 = per_tensor(x), per_tensor(w)
        ctx.save_for_backward(x8.data.T.contiguous(), x8.scale, w8.data, w8.data.T.contiguous(), w8.scale)
        ctx.backward_dtype = backward_dtype
        return x8.dequantize() @ w8.dequantize().T

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        """Gradients of x and of w."""
        x, sx, _, w, sw = ctx.saved_tensors
        g = current(gradients[0], ctx.backward_dtype)
        return g @ Scaled(w, sw).dequantize().T, g.T @ Scaled(x, sx).dequantize().T, None


def linear(
    x: torch.Tensor, w: torch.Tensor, *, backward_dtype: torch.dtype = E5M2, one_layout: bool = False
) -> torch.Tensor:
    """`F.linear` without a bias, in emulated hybrid fp8 (or with another format of the gradients).

    With `one_layout` it keeps transposed copies for backward, as a device needs them that multiplies in one layout.
    """
    kind = OneLayoutLinear if one_layout else HybridLinear
    out: torch.Tensor = kind.apply(x.flatten(0, -2), w, backward_dtype)
    return out.view(*x.shape[:-1], -1)


Keeps = Literal["bf16", "torchao", "copies", "copies and transposes", "fp8 only"]


def weight_bytes(parameters: int, keeps: Keeps) -> int:
    """Bytes of the weights of linear layers between forward and backward, without gradients and optimizer state.

    torchao casts anew in each product and keeps bf16 alone. Transformer Engine keeps an fp8 copy beside bf16 and, where
    the device multiplies in one layout only (compute capability 8.9, 9.0, 12.0), a transposed one as well, which MXFP8
    always has, cast along the other dimension. With `quantized_model_init` it keeps the two fp8 ones alone.
    """
    each = {"bf16": 2, "torchao": 2, "copies": 3, "copies and transposes": 4, "fp8 only": 2}
    return each[keeps] * parameters
