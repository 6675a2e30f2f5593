"""Causal self-attention through one named kernel, for any transformers model.

transformers' own `sdpa` path builds a mask under fake tensors and repeats keys where it need not, so a trace of it
counts bytes that a GPU never holds. Here the kernel is named, and queries share keys inside it where it can do that.
"""

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import AttentionInterface

from .cuda_rules import on_cuda
from .recipe import Attention

Kernel = Literal["math", "efficient", "flash"]
BACKENDS = {
    "math": SDPBackend.MATH,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
}


def implementation(attention: Attention) -> str:
    """The name under which transformers finds this kernel (`attn_implementation`)."""
    # transformers takes any name with "flash" in it for a package that it should load.
    return "efficient_training_" + ("tiled" if attention == "flash" else attention)


def kernel_for(attention: Attention, dtype: torch.dtype, *, cuda: bool, masked: bool = False) -> Kernel:
    """The kernel that `attention` means, with a mask or without; the CPU has flash alone, which takes a mask there.

    `sdpa` is flash, or efficient where flash cannot be: it needs 16 bits and takes no mask.
    """
    if attention == "math":
        return "math"
    if not cuda:
        return "flash"
    if attention == "sdpa":
        return "efficient" if masked or dtype == torch.float32 else "flash"
    return attention


def autocast_inputs(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """`tensors` in the dtype that autocast gives attention's inputs; as they are where there is no autocast."""
    device = tensors[0].device.type
    if not torch.is_autocast_enabled(device):
        return tensors
    return tuple(tensor.to(torch.get_autocast_dtype(device)) for tensor in tensors)


def causal_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float | None,
    attention: Attention,
    mask: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attention of `query` (batch, heads, tokens, head_dim) to `key` and `value` (batch, kv_heads, tokens, head_dim).

    Only flash attention lets queries share a key head; for the others keys and values are repeated, and saved so.
    Under autocast the inputs are cast first, as torch's own attention would, but before the kernel is chosen and keys
    are repeated. `mask` (batch, 1, tokens, tokens) is True where a query may attend to a key, and never after itself.
    Returns (batch, heads, tokens, head_dim).
    """
    query, key, value = autocast_inputs(query, key, value)
    kernel = kernel_for(attention, query.dtype, cuda=on_cuda(query), masked=mask is not None)
    traced = on_cuda(query) and not query.is_cuda
    groups = query.shape[1] // key.shape[1]
    if groups > 1 and kernel != "flash":
        key, value = (tensor.repeat_interleave(groups, dim=1) for tensor in (key, value))
    if traced and kernel == "flash":
        return _fake_flash(query, key, value, scale)
    if traced and kernel == "efficient":
        bias = None if mask is None else _as_numbers(mask, query)
        arguments = (query, key, value, bias, torch.is_grad_enabled(), 0.0, mask is None)
        return torch.ops.aten._scaled_dot_product_efficient_attention(*arguments, scale=scale)[0]  # type: ignore[no-any-return]
    with sdpa_kernel(BACKENDS[kernel]):
        return F.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=mask,
            is_causal=mask is None,
            scale=scale,
            enable_gqa=groups > 1 and kernel == "flash",
        )


def _as_numbers(mask: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """What aten's `scaled_dot_product_attention` hands its efficient kernel for a mask: 0 and -inf in query's dtype.

    Rows are padded to a multiple of 8 numbers (`pad_bias`), and heads share them (`expand`).
    """
    numbers = torch.where(mask, 0.0, torch.scalar_tensor(-torch.inf, dtype=query.dtype))
    width = numbers.shape[-1]
    if width % 8:
        numbers = F.pad(numbers, (0, 8 - width % 8))[..., :width]
    return numbers.expand(-1, query.shape[1], -1, -1)


def _fake_flash(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float | None) -> torch.Tensor:
    # As aten's scaled_dot_product_attention does, a head_dim that is no multiple of 8 is padded for flash attention.
    width = query.shape[-1]
    scale = scale if scale is not None else width**-0.5
    query, key, value = pad_heads(query, key, value)
    out = torch.ops.aten._scaled_dot_product_flash_attention(query, key, value, 0.0, True, False, scale=scale)[0]
    return out[..., :width] if width % 8 else out  # type: ignore[no-any-return]


def pad_heads(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """`tensors` (..., head_dim) with head_dim up to a multiple of 8, as CUDA's flash attention needs it."""
    width = tensors[0].shape[-1]
    return tensors if width % 8 == 0 else tuple(F.pad(tensor, (0, 8 - width % 8)) for tensor in tensors)


def _register(attention: Attention) -> None:
    def forward(
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        scaling: float | None = None,
        dropout: float = 0.0,
        **_: Any,
    ) -> tuple[torch.Tensor, None]:
        if dropout:
            raise NotImplementedError("this attention has no dropout; set it to 0 in the model's configuration")
        out = causal_attention(query, key, value, scaling, attention, attention_mask)
        return out.transpose(1, 2).contiguous(), None

    AttentionInterface.register(implementation(attention), forward)


for _attention in ("math", "efficient", "flash", "sdpa"):
    _register(_attention)
