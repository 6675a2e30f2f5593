"""The bytes that this rank holds of a model's states, by component, read from the live tensors.

Storages are counted, each once and whole, because a view keeps all of its storage alive: padding is counted, and a
gradient that is a view of a bucket is counted as the bucket.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

STATES = ("weights", "gradients", "optimizer state", "master weights")


def held(model: nn.Module, optimizer: Any) -> dict[str, int]:
    """Bytes on this rank by component: weights, gradients, optimizer state, master weights.

    Call it after `backward` and before `step`, when gradients are there. `model` and `optimizer` are those of a
    `Sharded`: any strategy's, DeepSpeed's included, or a plain model with its optimizer. A weight's storage is never
    counted as anything else, which matters where a master weight is the weight itself.
    """
    parameters = list(model.parameters())
    components = {
        "weights": [*_weights(parameters), *model.buffers()],
        "gradients": [*_gradients(model, parameters), *_engine_gradients(optimizer)],
        "optimizer state": _state(optimizer),
        "master weights": _masters(optimizer),
    }
    counted: set[int] = set()
    return {name: storage_bytes(tensors, counted) for name, tensors in components.items()}


def storage_bytes(tensors: Iterable[torch.Tensor], counted: set[int] | None = None) -> int:
    """Bytes of the distinct storages of `tensors` (of DTensors, their local part) that are not in `counted` yet."""
    seen = set() if counted is None else counted
    total = 0
    for tensor in tensors:
        storage = local(tensor).untyped_storage()
        if storage.nbytes() and storage.data_ptr() not in seen:
            seen.add(storage.data_ptr())
            total += storage.nbytes()
    return total


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a tensor: all of a plain one."""
    part: torch.Tensor = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return part.detach()


def gathered(model: nn.Module) -> int:
    """Bytes of weights that FSDP2 holds gathered at this moment, beside the parts that this rank owns."""
    return storage_bytes(output for part in _fsdp_parameters(model) for output in part.all_gather_outputs)


def gathered_parameters(model: nn.Module) -> Iterable[nn.Parameter]:
    """The whole parameters that FSDP2 puts in place of the shards of `model` and its modules, once they were gathered.

    No public way leads to them. They get the gradients, until these are reduced.
    """
    for part in _fsdp_parameters(model):
        if hasattr(part, "_unsharded_param"):
            yield part._unsharded_param


def _weights(parameters: Iterable[Any]) -> Iterable[torch.Tensor]:
    for parameter in parameters:
        yield parameter
        if hasattr(parameter, "ds_tensor"):  # DeepSpeed stage 3: the part, while the parameter itself is empty
            yield parameter.ds_tensor


def _gradients(model: nn.Module, parameters: Iterable[torch.Tensor]) -> Iterable[torch.Tensor]:
    for parameter in parameters:
        if parameter.grad is not None:
            yield parameter.grad
    for part in _fsdp_parameters(model):  # of micro-batches whose gradients have not been reduced yet
        if part.unsharded_accumulated_grad is not None:
            yield part.unsharded_accumulated_grad
    for parameter in gathered_parameters(model):
        if parameter.grad is not None:
            yield parameter.grad


def _engine_gradients(optimizer: Any) -> Iterable[torch.Tensor]:
    for tensors in (getattr(optimizer, "averaged_gradients", None) or {}).values():  # stages 1 and 2; stage 3: views
        yield from tensors or ()
    flat = getattr(optimizer, "grad_partitions_flat_buffer", None)  # stage 3
    if flat is not None:
        yield flat


def _masters(optimizer: Any) -> Iterable[torch.Tensor]:
    yield from getattr(optimizer, "single_partition_of_fp32_groups", None) or ()  # DeepSpeed stages 1 and 2
    yield from getattr(optimizer, "fp32_partitioned_groups_flat", None) or ()  # stage 3


def _state(optimizer: Any) -> Iterable[torch.Tensor]:
    inner: Optimizer = getattr(optimizer, "optim", None) or getattr(optimizer, "optimizer", None) or optimizer
    for state in inner.state.values():
        yield from (value for value in state.values() if isinstance(value, torch.Tensor))


def _fsdp_parameters(model: nn.Module) -> Iterable[Any]:
    for module in model.modules():
        if isinstance(module, FSDPModule):
            for group in _groups(module):
                yield from group.fsdp_params


def _groups(module: FSDPModule) -> Iterable[Any]:
    state = module._get_fsdp_state()
    groups = getattr(state, "_fsdp_param_groups", None)
    if groups is None:  # one group a module before torch 2.13
        group = state._fsdp_param_group
        groups = [] if group is None else [group]
    return groups
