"""Collectives of a training step: calls, and the bytes that they move.

Every collective of `torch.distributed`, from Python or from C++ (the buckets of DDP), passes the dispatcher as an
operator of the namespace `c10d`, and functional ones as `_c10d_functional`. `Communication` is a dispatch mode that
sees them all, so it works for DDP, FSDP and DeepSpeed alike, on any backend. It counts what is asked for; how the
backend moves it (ring, tree, copies within a machine) is not seen, and `sent` says what a ring would send.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

COLLECTIVES = {
    "c10d::allreduce_": "all-reduce",
    "c10d::allreduce_coalesced_": "all-reduce",
    "c10d::_allgather_base_": "all-gather",
    "c10d::allgather_": "all-gather",
    "c10d::allgather_coalesced_": "all-gather",
    "c10d::allgather_into_tensor_coalesced_": "all-gather",
    "c10d::_reduce_scatter_base_": "reduce-scatter",
    "c10d::reduce_scatter_": "reduce-scatter",
    "c10d::reduce_scatter_tensor_coalesced_": "reduce-scatter",
    "c10d::broadcast_": "broadcast",
    "c10d::reduce_": "reduce",
    "c10d::alltoall_": "all-to-all",
    "c10d::alltoall_base_": "all-to-all",
    "c10d::send": "send",
    "c10d::recv_": "receive",
    "_c10d_functional::all_reduce": "all-reduce",
    "_c10d_functional::all_reduce_": "all-reduce",
    "_c10d_functional::all_reduce_coalesced": "all-reduce",
    "_c10d_functional::all_gather_into_tensor": "all-gather",
    "_c10d_functional::all_gather_into_tensor_coalesced": "all-gather",
    "_c10d_functional::reduce_scatter_tensor": "reduce-scatter",
    "_c10d_functional::reduce_scatter_tensor_coalesced": "reduce-scatter",
    "_c10d_functional::broadcast": "broadcast",
    "_c10d_functional::all_to_all_single": "all-to-all",
}
"""Operator of the dispatcher to collective. Barriers and waits move no data of the model and are not counted."""

_SHARES: dict[str, Callable[[int], float]] = {
    "all-reduce": lambda n: 2 * (n - 1) / n,
    "all-gather": lambda n: (n - 1) / n,
    "reduce-scatter": lambda n: (n - 1) / n,
    "all-to-all": lambda n: (n - 1) / n,
    "broadcast": lambda n: (n - 1) / n,
    "reduce": lambda n: (n - 1) / n,
    "send": lambda n: 1.0,
    "receive": lambda n: 0.0,
}


def ring_share(collective: str, ranks: int) -> float:
    """What one rank sends, as a share of the collective's whole tensor, when `ranks` ranks form a ring.

    An all-gather of a tensor of S bytes has each rank send N - 1 pieces of S/N; a reduce-scatter too; an all-reduce is
    both in turn. A broadcast or a reduce, cut into many pieces, passes all of S through each rank but one: the mean
    over ranks, (N - 1)/N. Raises `KeyError` on an unknown collective.
    """
    return _SHARES[collective](ranks)


@dataclass(frozen=True)
class Call:
    """One collective: `bytes` of the whole tensor (each rank's input times the ranks, for a gather), `ranks` in it.

    `buffer` is the size of the storages that its tensors lie in, which may be larger than what is sent.
    """

    collective: str
    bytes: int
    ranks: int
    dtype: torch.dtype
    buffer: int

    @property
    def sent(self) -> float:
        """Bytes that this rank sends where the ranks form a ring."""
        return self.bytes * ring_share(self.collective, self.ranks)


class Communication(TorchDispatchMode):
    """Count the collectives that run inside the block, in this thread and in the backward pass that it starts.

    ```python
    with Communication() as communication:
        model(x).sum().backward()
        optimizer.step()
    print(communication.calls, communication.bytes, communication.sent)
    ```

    DDP orders its buckets anew after the first step, and FSDP and DeepSpeed learn an order in it: count from the third
    step on. `floor` leaves out calls on tensors of fewer bytes, such as the exchange of a flag or of a norm; they stay
    in `all`.
    """

    def __init__(self, floor: int = 0) -> None:
        super().__init__()
        self.floor = floor
        self.all: list[Call] = []

    @property
    def counted(self) -> list[Call]:
        """The calls on tensors of at least `floor` bytes, in their order."""
        return [call for call in self.all if call.bytes >= self.floor]

    @property
    def calls(self) -> dict[str, int]:
        """Calls by collective."""
        return {name: len(calls) for name, calls in _by_collective(self.counted).items()}

    @property
    def bytes(self) -> dict[str, int]:
        """Bytes of the whole tensors by collective."""
        return {name: sum(call.bytes for call in calls) for name, calls in _by_collective(self.counted).items()}

    @property
    def sent(self) -> float:
        """Bytes that this rank sends in all, where the ranks form a ring."""
        return sum(call.sent for call in self.counted)

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        collective = COLLECTIVES.get(func._schema.name)
        if collective is not None:
            self.all.append(_call(collective, func, args, kwargs or {}))
        return func(*args, **(kwargs or {}))


def _call(collective: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
    given = dict(zip((argument.name for argument in func._schema.arguments), args, strict=False)) | kwargs
    group = _group(given)
    leaves = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    buffer = sum({storage.data_ptr(): storage.nbytes() for storage in map(_storage, leaves)}.values())
    if func.namespace == "c10d":
        # Where there are outputs and inputs, the whole tensor is the gather's output and the scatter's input.
        whole = {"all-gather": "output", "reduce-scatter": "input"}.get(collective)
        tensors = [
            leaf
            for name, value in given.items()
            if whole is None or name.startswith(whole)
            for leaf in tree_leaves(value)
            if isinstance(leaf, torch.Tensor)
        ]
        if collective == "all-to-all":
            tensors = tensors[len(tensors) // 2 :]
        size = sum(tensor.nbytes for tensor in tensors)
    else:
        tensors = [leaf for leaf in tree_leaves(args[0]) if isinstance(leaf, torch.Tensor)]
        size = sum(tensor.nbytes for tensor in tensors) * (group.size() if collective == "all-gather" else 1)
    return Call(collective, size, group.size(), tensors[0].dtype, buffer)


def _storage(tensor: torch.Tensor) -> torch.UntypedStorage:
    return tensor.untyped_storage()


def _group(given: dict[str, Any]) -> dist.ProcessGroup:
    if "process_group" in given:
        return dist.ProcessGroup.unbox(given["process_group"])
    return distributed_c10d._resolve_process_group(given["group_name"])  # type: ignore[attr-defined]


def _by_collective(calls: Iterable[Call]) -> dict[str, list[Call]]:
    groups: dict[str, list[Call]] = {}
    for call in calls:
        groups.setdefault(call.collective, []).append(call)
    return groups
