"""What waits on the host in symbols: activations saved for backward, and FSDP2's shards under its CPU offload."""

from typing import NamedTuple

from .algebra import ZERO, Size
from .autograd import Tensor
from .operators import FLOAT
from .parameters import elements, number, shard_tables, tables
from .words import Words


class _Copy(NamedTuple):
    """A tensor's shape on the host."""

    like: Tensor


class ToHost:
    """Hooks that copy each saved tensor to the host and back for its node, as `torch.autograd.graph.save_on_cpu` does.

    Weights, and autocast's casts of them, stay where they are. A tensor that two operators save is copied twice.
    """

    def __init__(self) -> None:
        self.packed = ZERO

    def pack(self, tensor: Tensor) -> "Tensor | _Copy":
        """Note the copy and let go of the tensor, unless it is a weight."""
        if tensor.storage is None or tensor.storage.entry.lasting:
            return tensor
        self.packed = self.packed + tensor.bytes * tensor.tape.region.times
        return _Copy(Tensor(tensor.tape, None, tensor.numel, tensor.itemsize, tensor.heads_first))

    def unpack(self, packed: "Tensor | _Copy") -> Tensor:
        """A copy on the device, for the node that asks."""
        if isinstance(packed, Tensor):
            return packed
        like = packed.like
        storage = like.tape.allocate(like.bytes)
        return Tensor(like.tape, storage, like.numel, like.itemsize, like.heads_first)


def fsdp_host(words: Words) -> dict[str, dict[str, Size]]:
    """Bytes on the host by phase and component under FSDP2's `CPUOffloadPolicy`: the shards, and AdamW's step on them.

    Gradients arrive in backward (`foreach_reduce`), and are there from the start under accumulation.
    """
    shards = shard_tables(tables(words), words)
    weights = elements(shards) * words.state_itemsize
    states = {"weights": weights, "optimizer state": weights * 2 + number(shards) * FLOAT}
    full = states | {"gradients": weights}
    roots = {"temporaries": weights} if words.optimizer == "foreach" else {}
    return {
        "forward": full if words.accumulating else states,
        "backward": full,
        "optimizer step": full | roots,
    }
