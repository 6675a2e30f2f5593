"""A plain model under DeepSpeed's ZeRO stages.

DeepSpeed is imported only here, and takes seconds to. It needs a process group, which it then uses as it is.
"""

import contextlib
import functools
import sys
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from .. import native
from ..errors import UserError
from .strategies import MakeOptimizer, Sharded
from .words import check_strategy

BUCKET = 500_000_000
"""DeepSpeed's default size of the buffers in which gradients wait to be reduced, in elements."""


class Engine(Sharded):
    """A DeepSpeed engine and its ZeRO optimizer, with the steps of `Sharded`."""

    model: Any
    optimizer: Any

    def backward(self, loss: torch.Tensor) -> None:
        """The engine's own backward."""
        self.model.backward(loss)

    def step(self) -> None:
        """The engine's own step, which drops the gradients too."""
        self.model.step()


def engine(
    model: nn.Module,
    strategy: str,
    make_optimizer: MakeOptimizer,
    *,
    micro_batch: int = 1,
    bf16: bool = False,
    bucket: int = BUCKET,
    zero: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
) -> Engine:
    """Put `model`, the same on every rank, under DeepSpeed's stage 1, 2 or 3, with torch's AdamW.

    `bucket` is the size of its buffers in elements; its default is made for large models. `zero` and `config` are
    merged into the section `zero_optimization` and into the whole configuration. Parameters of any size are divided
    (`stage3_param_persistence_threshold: 0`). Raises `UserError` on a strategy that is no DeepSpeed stage, or where
    DeepSpeed is not installed.
    """
    check_strategy(strategy)
    if not strategy.startswith("deepspeed-"):
        raise UserError(f"sharding: {strategy} is no DeepSpeed stage: use efficient_training.sharding.strategies.shard")
    if not isinstance(make_optimizer, functools.partial) or make_optimizer.func is not torch.optim.AdamW:
        raise UserError("sharding: a DeepSpeed stage needs functools.partial(torch.optim.AdamW, ...)")
    made: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": micro_batch,
        "bf16": {"enabled": bf16},
        "gradient_clipping": 0.0,  # none, as elsewhere; DeepSpeed's default is 1.0 since June 2026 (pull request 8068)
        "optimizer": {"type": "AdamW", "params": {"torch_adam": True, **make_optimizer.keywords}},
        "zero_optimization": {
            "stage": int(strategy[-1]),
            "reduce_bucket_size": bucket,
            "allgather_bucket_size": bucket,
            "stage3_prefetch_bucket_size": bucket,
            "stage3_param_persistence_threshold": 0,
            **(zero or {}),
        },
        **(config or {}),
    }
    deepspeed = _deepspeed(next(model.parameters()).device)
    with contextlib.redirect_stdout(sys.stderr):
        wrapped, optimizer, _, _ = deepspeed.initialize(
            model=model, model_parameters=model.parameters(), config=made, dist_init_required=False
        )
    return Engine(strategy, wrapped, optimizer)


def _deepspeed(device: torch.device) -> Any:
    native.use()
    try:
        with contextlib.redirect_stdout(sys.stderr):
            import deepspeed

            native.load()
    except ImportError as error:
        raise UserError(f"sharding: DeepSpeed cannot be imported ({error}); install the tier's requirements") from None
    from deepspeed.utils import logger

    logger.setLevel("ERROR")
    if not deepspeed.comm.is_initialized():
        deepspeed.init_distributed(dist_backend="gloo" if device.type == "cpu" else "nccl")
    return deepspeed
