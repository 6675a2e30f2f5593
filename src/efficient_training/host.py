"""Tensors saved for backward in host memory.

On a GPU these are copies between two memories. A step on a CPU, real or fake, makes the same copies within one, so that
a trace counts them where a GPU has them.
"""

from collections.abc import Iterable

import torch
from torch.autograd.graph import saved_tensors_hooks

from .measure.places import in_host_memory

Packed = tuple[torch.device, torch.Tensor] | torch.Tensor


class SavedOnHost(saved_tensors_hooks):
    """`torch.autograd.graph.save_on_cpu`, but for weights, which are on the device anyway: they stay there.

    A tensor that two operators save is copied twice; autocast's casts of weights are copied as any other tensor.
    Give the weights with `keep`: those whose storages come later, as FSDP2's gathered ones, as soon as they are there.
    """

    def __init__(self, weights: Iterable[torch.Tensor] = ()) -> None:
        super().__init__(self._pack, self._unpack)
        self._kept: dict[int, torch.UntypedStorage] = {}
        self.keep(weights)

    def keep(self, weights: Iterable[torch.Tensor]) -> None:
        """Leave what is saved of these tensors where it is."""
        for weight in weights:
            storage = weight.untyped_storage()
            self._kept[id(storage)] = storage  # held, so that no other takes its identity

    def _pack(self, tensor: torch.Tensor) -> Packed:
        if id(tensor.untyped_storage()) in self._kept:
            return tensor
        with in_host_memory():
            return tensor.device, tensor.to("cpu", copy=True)

    @staticmethod
    def _unpack(packed: Packed) -> torch.Tensor:
        if isinstance(packed, torch.Tensor):
            return packed
        device, copy = packed
        return copy.to(device, copy=True)
