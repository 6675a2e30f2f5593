"""FSDP2's shards in host memory: the copies that its `CPUOffloadPolicy` makes, on every machine, and whose they are.

On a GPU these are copies between two memories. On a CPU, real or fake, torch's `.to` would return the tensor itself;
here it copies, so that a trace counts what a GPU has.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch.distributed.fsdp._fully_shard import _fsdp_collectives, _fsdp_param_group
from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam

from .measure.places import in_host_memory


@contextmanager
def shards_on_host() -> Iterator[None]:
    """Inside the block, FSDP2's `CPUOffloadPolicy` copies between host and device on every machine, and says where to.

    `FSDPParam.all_gather_inputs` takes a shard to the device, `foreach_reduce` a reduced gradient to the host; both by
    a `.to` of a device, and by no other.
    """
    gather, reduce = FSDPParam.all_gather_inputs, _fsdp_collectives.foreach_reduce

    def all_gather_inputs(parameter: FSDPParam) -> list[torch.Tensor]:
        with patch.object(torch.Tensor, "to", _copying):
            return gather.__get__(parameter)  # type: ignore[no-any-return]

    def foreach_reduce(*args: Any, **kwargs: Any) -> Any:
        with patch.object(torch.Tensor, "to", _copying_to_host):
            return reduce(*args, **kwargs)

    with (
        patch.object(FSDPParam, "all_gather_inputs", property(all_gather_inputs)),
        patch.object(_fsdp_param_group, "foreach_reduce", foreach_reduce),
    ):
        yield


_to: Callable[..., torch.Tensor] = torch.Tensor.to


def _copying(tensor: torch.Tensor, target: Any, **kwargs: Any) -> torch.Tensor:
    return _to(tensor, target, **(kwargs | {"copy": True} if isinstance(target, torch.device) else kwargs))


def _copying_to_host(tensor: torch.Tensor, target: Any, **kwargs: Any) -> torch.Tensor:
    with in_host_memory() if isinstance(target, torch.device) else nullcontext():
        return _copying(tensor, target, **kwargs)


def kept_on_host(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """The shards, their gradients and the optimizer's state, where FSDP2 keeps them on the host."""
    states = [leaf for state in optimizer.state.values() for leaf in state.values() if isinstance(leaf, torch.Tensor)]
    shards = list(model.parameters())
    return [*shards, *(shard.grad for shard in shards if shard.grad is not None), *states]
