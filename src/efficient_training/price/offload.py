"""What waits on the host in symbols: activations saved for backward."""

from typing import NamedTuple

from .autograd import Tensor


class _Copy(NamedTuple):
    """A tensor on the host."""

    tensor: Tensor


class ToHost:
    """Hooks that copy each saved tensor to the host and back for its node, as `host.SavedOnHost` does.

    Weights stay where they are; autocast's casts of them are copied. A tensor that two operators save is copied twice.
    """

    def pack(self, tensor: Tensor) -> "Tensor | _Copy":
        """Copy the tensor and let go of it, unless it is a weight."""
        if tensor.storage is None:
            return tensor
        with tensor.tape.in_host_memory():
            return _Copy(_copied(tensor))

    def unpack(self, packed: "Tensor | _Copy") -> Tensor:
        """A copy on the device, for the node that asks."""
        if isinstance(packed, Tensor):
            return packed
        return _copied(packed.tensor)


def _copied(tensor: Tensor) -> Tensor:
    assert tensor.storage is not None
    storage = tensor.tape.allocate(tensor.bytes, tensor.storage.entry.wide)
    return Tensor(tensor.tape, storage, tensor.numel, tensor.itemsize, tensor.heads_first)
