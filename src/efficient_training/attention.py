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


def kernel_for(attention: Attention, dtype: torch.dtype, *, cuda: bool) -> Kernel:
    """The kernel that `attention` means: what CUDA picks for `sdpa` (flash needs 16 bits); the CPU has flash alone."""
    if attention == "math":
        return "math"
    if not cuda:
        return "flash"
    if attention == "sdpa":
        return "efficient" if dtype == torch.float32 else "flash"
    return attention


def causal_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float | None, attention: Attention
) -> torch.Tensor:
    """Attention of `query` (batch, heads, tokens, head_dim) to `key` and `value` (batch, kv_heads, tokens, head_dim).

    Only flash attention lets queries share a key head; for the others keys and values are repeated, and saved so.
    Under autocast the inputs are cast first, as torch's own attention would, but before the kernel is chosen and keys
    are repeated. Returns (batch, heads, tokens, head_dim).
    """
    device = query.device.type
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    kernel = kernel_for(attention, query.dtype, cuda=on_cuda(query))
    traced = on_cuda(query) and not query.is_cuda
    groups = query.shape[1] // key.shape[1]
    if groups > 1 and kernel != "flash":
        key, value = (tensor.repeat_interleave(groups, dim=1) for tensor in (key, value))
    if traced and kernel == "flash":
        return _fake_flash(query, key, value, scale)
    if traced and kernel == "efficient":
        arguments = (query, key, value, None, torch.is_grad_enabled(), 0.0, True)
        return torch.ops.aten._scaled_dot_product_efficient_attention(*arguments, scale=scale)[0]  # type: ignore[no-any-return]
    with sdpa_kernel(BACKENDS[kernel]):
        return F.scaled_dot_product_attention(
            query, key, value, is_causal=True, scale=scale, enable_gqa=groups > 1 and kernel == "flash"
        )


def _fake_flash(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float | None) -> torch.Tensor:
    # As aten's scaled_dot_product_attention does, a head_dim that is no multiple of 8 is padded for flash attention.
    width = query.shape[-1]
    scale = scale if scale is not None else width**-0.5
    if width % 8:
        query, key, value = (F.pad(tensor, (0, 8 - width % 8)) for tensor in (query, key, value))
    out = torch.ops.aten._scaled_dot_product_flash_attention(query, key, value, 0.0, True, False, scale=scale)[0]
    return out[..., :width] if width % 8 else out  # type: ignore[no-any-return]


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
        if attention_mask is not None or dropout:
            raise NotImplementedError("this attention is causal, without padding and dropout; pack sequences instead")
        return causal_attention(query, key, value, scaling, attention).transpose(1, 2).contiguous(), None

    AttentionInterface.register(implementation(attention), forward)


for _attention in ("math", "efficient", "flash", "sdpa"):
    _register(_attention)
