"""Activation checkpointing of a transformers model's blocks, as a recipe asks for it."""

from functools import partial
from typing import Any

import torch
import torch.nn.attention.varlen  # registers its operator
from torch import nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
    noop_context_fn,
)

from .cuda_rules import ContextFn, recomputing
from .recipe import Recipe

ATEN = torch.ops.aten
SAVED_BY_SELECTIVE = frozenset(
    {
        ATEN.mm.default,
        ATEN.addmm.default,
        ATEN.bmm.default,
        ATEN._scaled_dot_product_flash_attention.default,
        ATEN._scaled_dot_product_efficient_attention.default,
        ATEN._scaled_dot_product_flash_attention_for_cpu.default,
        torch.ops.torch_attn._varlen_attn.default,
    }
)
"""Operators whose results selective checkpointing keeps: matrix products and attention, the dear ones to run again."""

QUANTIZED_PRODUCT = "bitsandbytes::gemm_4bit"
"""The product of a 4-bit linear layer, by name, as bitsandbytes may not be installed.

Within the operator, on many rows, the whole weight is copied in the compute dtype, which no tracker sees; backward
makes the same copy in the open.
"""

PRODUCTS = frozenset({ATEN.mm.default, ATEN.addmm.default})
"""The matrix products of linear layers."""


def _policy(context: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    kept = operator in SAVED_BY_SELECTIVE or operator.name() == QUANTIZED_PRODUCT
    return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE


class _EverySecond:
    """The policy that keeps every second matrix product, the first and third and so on, as torchtitan's does.

    One for each run of a segment and its recomputation, which count for themselves.
    """

    def __init__(self) -> None:
        self._seen = {False: 0, True: 0}

    def __call__(self, context: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        if operator in PRODUCTS or operator.name() == QUANTIZED_PRODUCT:
            self._seen[context.is_recompute] += 1
            if self._seen[context.is_recompute] % 2 == 0:
                return CheckpointPolicy.PREFER_RECOMPUTE
        return _policy(context, operator)


def _every_second() -> Any:
    return create_selective_checkpoint_contexts(_EverySecond())


class Segment(nn.Module):
    """Consecutive blocks of a model, run under one checkpoint: only what goes in is kept for backward."""

    def __init__(self, blocks: list[nn.Module], context_fn: ContextFn | None = None) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.context_fn = context_fn

    def forward(self, hidden: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Run the blocks one after the other, to be run again in backward."""
        run = partial(self._run, *args, **kwargs)
        context_fn = recomputing(self.context_fn or noop_context_fn)
        return checkpoint(run, hidden, use_reentrant=False, context_fn=context_fn)  # type: ignore[no-any-return]

    def _run(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        *rest, hidden = args
        for block in self.blocks:
            out = block(hidden, *rest, **kwargs)
            hidden = out[0] if isinstance(out, tuple) else out
        return hidden  # type: ignore[no-any-return]


def block_list(model: nn.Module) -> tuple[nn.Module, str]:
    """The module that holds a causal language model's blocks, and the attribute: `layers`, or `h` in GPT-2."""
    base = model.base_model if isinstance(model.base_model, nn.Module) else model
    return base, "h" if hasattr(base, "h") else "layers"


def apply_checkpointing(model: nn.Module, recipe: Recipe) -> None:
    """Put the model's blocks into checkpointed segments, in place; nothing changes under `checkpointing: none`."""
    if recipe.checkpointing == "none":
        return
    context_fn: ContextFn | None = None
    if recipe.checkpointing == "selective":
        context_fn = partial(create_selective_checkpoint_contexts, _policy)
    elif recipe.checkpointing == "selective-half":
        context_fn = _every_second
    owner, name = block_list(model)
    blocks, every = list(getattr(owner, name)), recipe.checkpoint_every
    segments = [Segment(blocks[start : start + every], context_fn) for start in range(0, len(blocks), every)]
    setattr(owner, name, nn.ModuleList(segments))
