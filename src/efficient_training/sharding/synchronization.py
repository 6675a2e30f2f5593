"""Micro-batches whose gradients are not sent yet, for whatever wraps the model.

DDP has a context manager, `model.no_sync()`; FSDP2 a method, `model.set_requires_gradient_sync(False)`. Code written
for one does nothing, or fails, under the other: the usual guard `if hasattr(model, "no_sync")` is silent under FSDP2,
and every micro-batch is reduced. The two functions here do what is meant under both, and warn where the words are the
other's.
"""

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

from torch import nn
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel

from ..errors import UserError


class OtherBackendWarning(UserWarning):
    """The call is another backend's; what it means has been done."""


@contextlib.contextmanager
def no_sync(model: nn.Module) -> Iterator[None]:
    """Backward passes in the block add up gradients without sending them, as under `DistributedDataParallel.no_sync`.

    Under FSDP2, which has no such method, warns and does it by `set_requires_gradient_sync`. Raises `UserError` where
    nothing synchronizes `model`'s gradients.
    """
    if isinstance(model, FSDPModule):
        _warn("no_sync is DDP's and FSDP1's; FSDP2 has set_requires_gradient_sync, which is used instead")
        set_on(model, False)
        try:
            yield
        finally:
            set_on(model, True)
        return
    _check(model)
    with model.no_sync():  # type: ignore[operator]
        yield


def set_requires_gradient_sync(model: nn.Module, on: bool) -> None:
    """Send gradients in the backward passes to come, or do not, as `FSDPModule.set_requires_gradient_sync`.

    Under DDP, which has `no_sync` instead, warns and does it. Raises `UserError` under FSDP1, whose switch is only a
    context manager, and where nothing synchronizes `model`'s gradients.
    """
    _check(model)
    if isinstance(model, FullyShardedDataParallel):
        raise UserError("sharding: FSDP1 has no set_requires_gradient_sync; use its context manager no_sync")
    if isinstance(model, DistributedDataParallel):
        _warn("set_requires_gradient_sync is FSDP2's; DDP has the context manager no_sync, whose switch is set instead")
    set_on(model, on)


def set_on(model: Any, on: bool) -> None:
    """Set the switch of FSDP2 or DDP, without a warning."""
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(on)
    else:
        model.require_backward_grad_sync = on


def _check(model: nn.Module) -> None:
    if not isinstance(model, FSDPModule | FullyShardedDataParallel | DistributedDataParallel):
        raise UserError(
            f"sharding: {type(model).__name__} synchronizes no gradients; wrap it in DDP or FSDP first "
            "(DeepSpeed's engine counts micro-batches itself: gradient_accumulation_steps)"
        )


def _warn(message: str) -> None:
    warnings.warn(message, OtherBackendWarning, stacklevel=4)
