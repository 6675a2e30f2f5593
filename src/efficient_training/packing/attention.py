"""Attention within documents, at a cost that grows with the squares of their lengths and not with the row's.

On CUDA in 16 bits it is one kernel for all documents, torch's `varlen_attn`. Elsewhere it is one call a document, with
the same result; nothing is saved that is quadratic in tokens.
"""

from collections.abc import Sequence
from inspect import signature
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention.varlen import varlen_attn
from transformers import AttentionInterface

from ..attention import autocast_inputs, pad_heads
from ..cuda_rules import on_cuda
from ..errors import UserError

IMPLEMENTATION = "efficient_training_packed"
"""The name under which transformers finds it (`attn_implementation`)."""


def document_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    boundaries: torch.Tensor,
    longest: int,
    scale: float | None = None,
    lengths: Sequence[int] | None = None,
) -> torch.Tensor:
    """Causal attention of `query` (tokens, heads, head_dim) to `key` and `value` (tokens, kv_heads, head_dim).

    `boundaries` (documents + 1,), int32: document i has the tokens from `boundaries[i]` to `boundaries[i + 1]`;
    `longest` is the length of the longest. `lengths` are the same as numbers, which spare the way from a device where
    the kernel needs none. Returns (tokens, heads, head_dim).
    """
    shared = query.shape[1] != key.shape[1]
    if on_cuda(query) and query.dtype in (torch.float16, torch.bfloat16):
        return _varlen(query, key, value, boundaries, longest, scale)
    sizes = boundaries.diff().tolist() if lengths is None else list(lengths)
    heads_first = ([part.transpose(0, 1)[None] for part in tensor.split(sizes)] for tensor in (query, key, value))
    return torch.cat(
        [
            F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=shared)[0].transpose(0, 1)
            for q, k, v in zip(*heads_first, strict=True)
        ]
    )


def _varlen(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    boundaries: torch.Tensor,
    longest: int,
    scale: float | None,
) -> torch.Tensor:
    width, scale = query.shape[-1], scale if scale is not None else query.shape[-1] ** -0.5
    query, key, value = pad_heads(query, key, value)
    groups = query.shape[1] // key.shape[1]
    options: dict[str, Any] = {}
    if groups > 1 and "enable_gqa" in signature(varlen_attn).parameters:
        options["enable_gqa"] = True
    elif groups > 1:  # an older torch, whose kernel is not told of shared keys
        key, value = (tensor.repeat_interleave(groups, dim=1) for tensor in (key, value))
    out = varlen_attn(
        query, key, value, boundaries, boundaries, longest, longest, scale=scale, window_size=(-1, 0), **options
    )
    assert isinstance(out, torch.Tensor)  # a pair where auxiliary results are asked for
    return out[..., :width] if width % 8 else out


def _forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    cu_seq_lens_q: torch.Tensor | None = None,
    max_length_q: int | None = None,
    document_lengths: Sequence[int] | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    if cu_seq_lens_q is None or max_length_q is None:
        raise UserError(f"{IMPLEMENTATION}: the batch has no boundaries; hand in model_inputs(packed_batch(...))")
    if attention_mask is not None or dropout:
        raise UserError(f"{IMPLEMENTATION}: neither a mask nor dropout is supported; leave both out")
    rows, tokens = query.shape[0], query.shape[2]
    query, key, value = autocast_inputs(query, key, value)
    query, key, value = (tensor.transpose(1, 2).flatten(0, 1) for tensor in (query, key, value))
    out = document_attention(query, key, value, cu_seq_lens_q, max_length_q, scaling, document_lengths)
    return out.view(rows, tokens, *out.shape[1:]).contiguous(), None


AttentionInterface.register(IMPLEMENTATION, _forward)
