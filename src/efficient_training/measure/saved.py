"""What autograd saves for the backward pass, counted by storage.

Autograd keeps the tensors that a backward formula needs. `saved_tensors` sees each of them through
`torch.autograd.graph.saved_tensors_hooks` and counts every storage once, at its full size, because a saved view keeps
the whole storage alive. Parameters are saved too (a matrix product needs its weight), but they would be there without
any backward pass: exclude them, or a linear layer's weight is taken for an activation.
"""

import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType

import torch
from torch.autograd.graph import saved_tensors_hooks

from .parts import plain_tensors


@dataclass(frozen=True)
class SavedTensor:
    """One storage that autograd keeps: `shape` and `dtype` of the first tensor saved from it, `bytes` of the whole."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    bytes: int


class _Held:
    """What the graph keeps in place of a tensor: it dies when the graph lets go of the tensor."""

    __slots__ = ("__weakref__", "tensor")

    def __init__(self, tensor: torch.Tensor) -> None:
        # Not the tensor itself: a saved output refers to its node, which would then refer to itself and never be freed.
        self.tensor = tensor.detach()


@dataclass
class _Storage:
    saved: SavedTensor
    holders: int = 0


def _storage(tensor: torch.Tensor) -> torch.UntypedStorage:
    """Where the numbers of this process are: those of its part of a DTensor, or what a collective in flight fills."""
    return next(plain_tensors(tensor)).untyped_storage()


class saved_tensors:
    """Count what the graphs built inside the block save for backward.

    ```python
    with saved_tensors(exclude=model.parameters()) as saved:
        loss = model(x).sum()
    print(saved.bytes, saved.tensors)
    ```

    `exclude` are tensors whose storages are left out: parameters, and buffers or inputs where they should not count.
    Of a `DTensor` this process's part counts. The result is the largest set of storages held at one time inside the
    block. For a forward pass that is everything it saves; where backward passes run in the block too, as in gradient
    accumulation, it is the peak.

    Under `torch.utils.checkpoint` (non-reentrant), only what survives until the backward pass counts: the inputs of the
    checkpointed function. Inside it the checkpoint's own hooks take precedence, in the recomputation as well. A tensor
    that only a Python closure keeps alive is not seen, nor is what a kernel allocates and frees within itself.
    """

    def __init__(self, exclude: Iterable[torch.Tensor] = ()) -> None:
        # The storages are kept, not only their identities, so that no identity is used again while this object lives.
        self._excluded = {id(storage): storage for storage in map(_storage, exclude)}
        self._storages: dict[int, _Storage] = {}
        self._held = 0
        self._bytes = 0
        self._tensors: tuple[SavedTensor, ...] = ()
        self._open = False
        self._hooks = saved_tensors_hooks(self._pack, self._unpack)

    @property
    def bytes(self) -> int:
        """Bytes of the distinct storages saved."""
        return max(self._bytes, self._held) if self._open else self._bytes

    @property
    def tensors(self) -> tuple[SavedTensor, ...]:
        """The distinct storages saved, in the order in which autograd saved them."""
        if self._open:
            self._keep_maximum()
        return self._tensors

    def __enter__(self) -> "saved_tensors":
        self._hooks.__enter__()
        self._open = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._keep_maximum()
        self._open = False
        self._hooks.__exit__(kind, error, trace)

    def _pack(self, tensor: torch.Tensor) -> _Held:
        held = _Held(tensor)
        storage = _storage(tensor)
        key = id(storage)
        if key not in self._excluded:
            entry = self._storages.get(key)
            if entry is None:
                entry = _Storage(SavedTensor(tuple(tensor.shape), tensor.dtype, storage.nbytes()))
                self._storages[key] = entry
                self._held += entry.saved.bytes
            entry.holders += 1
            weakref.finalize(held, self._release, key).atexit = False
        return held

    @staticmethod
    def _unpack(held: _Held) -> torch.Tensor:
        return held.tensor

    def _release(self, key: int) -> None:
        entry = self._storages[key]
        entry.holders -= 1
        if entry.holders == 0:
            if self._open:
                self._keep_maximum()
            del self._storages[key]
            self._held -= entry.saved.bytes

    def _keep_maximum(self) -> None:
        if self._held > self._bytes:
            self._bytes = self._held
            self._tensors = tuple(entry.saved for entry in self._storages.values())
