"""Memory of a training step, by phase and component, on real tensors.

`MemoryTracker` is a dispatch mode: it sees every operator that PyTorch runs, notes the storages that its outputs bring
into being, and notes when each is freed. So it counts requested bytes exactly, on any device, and needs no allocator
statistics. It does not see what a kernel allocates and frees within itself (workspaces of matrix products and of
attention), memory outside tensors, or an allocator's rounding and its cache.

Every storage belongs to one component for its whole life, judged by what it becomes: a tensor that ends as `p.grad`
is a gradient from the moment it is allocated. So components are known only once a phase is over, and the timeline is
worked out afterwards from a log of allocations and frees.
"""

import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import torch
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode

from .hooks import hook_first
from .parts import plain_tensors, torn_apart
from .places import in_host_memory, on_host
from .recomputation import recomputing
from .samples import FORWARD, MOVING, SILENT, Log, Phase, Sample, Storage

Tensors = Iterable[torch.Tensor] | Callable[[], Iterable[torch.Tensor]]

OUTSIDE = "outside"
"""The phase of whatever happens in the tracker but in no named phase."""

_NO_FORWARD = ("backward", "optimizer step")


class MemoryTracker(TorchDispatchMode):
    """Track live bytes by component through the phases of a training step.

    ```python
    with MemoryTracker(model, optimizer) as tracker:
        with tracker.phase("forward"):
            loss = model(x).sum()
        with tracker.phase("backward"):
            loss.backward()
        with tracker.phase("optimizer step"):
            optimizer.step()
    print(tracker.peak.bytes, tracker.peak.components)
    ```

    Components, in the order in which they are decided:

    - `weights` (parameters and buffers of `model`), `gradients` (`p.grad`), `optimizer state` (tensors in
      `optimizer.state`), and whatever `components` names, such as `{"master weights": masters}`; a callable is asked
      again at the end of each phase.
    - `communication`: what a collective, or an operator of FSDP2, reads or writes: buffers, and gathered weights.
    - `loss`: tensors whose last dimension is `vocabulary`, in memory too: logits, their copies, their gradients. Give
      it for a language model whose vocabulary is no other dimension's size; without it these count as the next two.
    - `activations`: made by forward code (a recomputation during backward is forward code too) and still alive when
      that code is done, that is, at the end of the phase, or when backward goes on after a recomputation.
    - `temporaries`: the rest, the gradients of activations among them.

    Weights are those that the model has when the tracker begins: under FSDP2, the shards. `watched` are further
    parameters whose gradients count as such, like FSDP2's gathered ones. Storages that FSDP2 frees and allocates by
    resizing are followed.

    What is allocated inside `places.in_host_memory`, and those of the tensors `host` that are older than the tracker,
    counts as the host's memory (`Sample.host`); everything else as the device's, whatever its own device.

    Use the phases `backward` and `optimizer step` for what they say; other names are free, and a phase may be entered
    many times. Tensors made before the tracker and not named to it are not counted, nor are views of them. A tracker
    serves one block, and does not keep the model alive after it.
    """

    def __init__(
        self,
        model: torch.nn.Module | None = None,
        optimizer: Optimizer | None = None,
        *,
        components: Mapping[str, Tensors] | None = None,
        vocabulary: int | None = None,
        watched: Iterable[torch.nn.Parameter] = (),
        host: Tensors = (),
    ) -> None:
        super().__init__()
        self._watched = list(watched)
        self._host: Tensors = host if callable(host) else list(host)
        self._model, self._optimizer, self._vocabulary = model, optimizer, vocabulary
        self._named: dict[str, Tensors] = {
            name: tensors if callable(tensors) else list(tensors) for name, tensors in (components or {}).items()
        }
        self._phase = OUTSIDE
        self._live: dict[int, Storage] = {}
        self._live_bytes = 0
        self._log = Log()
        self._recent: list[Storage] = []
        self._handles: list[Any] = []
        self._used = False
        self._parameters: list[torch.Tensor] = []
        self._resize_storage: Any = None

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Of a compiled function what runs is tracked, as far as it is torch's operators, and not its compilation."""
        return True

    @property
    def live(self) -> int:
        """Bytes alive now, in all places."""
        return self._live_bytes

    @cached_property
    def timeline(self) -> list[Sample]:
        """A sample after each operator, and at the start and end of each phase. Read it after the tracker has ended."""
        live: Counter[str] = Counter()
        host: Counter[str] = Counter()
        samples, done = [], 0
        for step, (length, phase, operator) in enumerate(self._log.marks):
            for storage, delta in self._log.changes[done:length]:
                (host if storage.on_host else live)[storage.component] += delta
            done = length
            device, away = ({name: size for name, size in place.items() if size} for place in (live, host))
            samples.append(Sample(step, phase, operator, device, away))
        return samples

    @property
    def phases(self) -> dict[str, Phase]:
        """The phases by name, in the order in which they first began. Read it after the tracker has ended."""
        samples: dict[str, list[Sample]] = {}
        for sample in self.timeline:
            samples.setdefault(sample.phase, []).append(sample)
        return {name: Phase(max(group, key=lambda sample: sample.bytes), group[-1]) for name, group in samples.items()}

    @property
    def peak(self) -> Sample:
        """The sample at the peak of the whole step: the maximum over its phases."""
        return max((phase.peak for phase in self.phases.values()), key=lambda sample: sample.bytes)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Name what runs inside the block; raises `RuntimeError` inside another phase."""
        if self._phase != OUTSIDE:
            raise RuntimeError(f"phase {name!r} begins inside phase {self._phase!r}")
        self._end_forward()
        self._phase = name
        self._mark("")
        try:
            yield
        finally:
            self._name_known()
            self._end_forward()
            self._mark("")
            self._phase = OUTSIDE

    def __enter__(self) -> "MemoryTracker":
        if self._used:
            raise RuntimeError("a MemoryTracker tracks one block; make another for the next")
        self._used = True
        self._parameters = list(self._model.parameters()) if self._model is not None else []
        with in_host_memory():
            for tensor in plain_tensors(list(self._host() if callable(self._host) else self._host)):
                self._entry(tensor)
        self._name_known()
        for parameter in [*self._parameters, *self._watched]:
            if parameter.requires_grad:
                self._handles.append(hook_first(parameter, self._name_gradient))
        self._follow_resizes()
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self.__dict__.pop("timeline", None)  # what was read of it too early
        self._name_known()
        self._end_forward()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        torch.UntypedStorage.resize_ = self._resize_storage  # type: ignore[method-assign]
        # What was measured is kept, not what it was measured on.
        self._model, self._optimizer, self._named = None, None, {}
        self._parameters, self._watched, self._host = [], [], []

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if torn_apart(types):
            return NotImplemented
        operator = func.name()
        forward = operator in FORWARD or self._in_forward()
        out = func(*args, **(kwargs or {}))
        for tensor in plain_tensors(out):
            self._see(tensor, func, args, kwargs, forward)
        if operator.startswith(MOVING):
            for tensor in plain_tensors((args, kwargs)):
                if entry := self._live.get(id(tensor.untyped_storage())):
                    entry.moved = True
        if not operator.startswith(SILENT):
            self._mark(operator)
        return out

    def _follow_resizes(self) -> None:
        """Resizing a storage is no operator that a mode could see, so that the method itself reports here."""
        original = self._resize_storage = torch.UntypedStorage.resize_

        def resize_(storage: Any, size: int) -> Any:
            out = original(storage, size)
            entry = self._live.get(id(storage))
            if entry is None and storage.nbytes():
                forward = self._in_forward()
                if not forward:
                    self._end_forward()
                entry = self._add_storage(storage, wide=False)
                if forward:
                    self._recent.append(entry)
            elif entry is not None:
                self._resize(entry, storage.nbytes())
            return out

        torch.UntypedStorage.resize_ = resize_  # type: ignore[method-assign, assignment]

    def _see(self, tensor: torch.Tensor, func: Any, args: Any, kwargs: Any, forward: bool) -> None:
        storage = tensor.untyped_storage()
        entry = self._live.get(id(storage))
        if entry is not None:
            self._resize(entry, storage.nbytes())
        elif func is torch.ops.aten.lift_fresh.default or not _is_view(storage, (args, kwargs)):
            if not forward:
                self._end_forward()
            entry = self._add(tensor)
            if forward:
                self._recent.append(entry)

    def _in_forward(self) -> bool:
        """Whether the code that now runs is a forward pass, and not backward's or the optimizer's own arithmetic."""
        if torch._C._current_graph_task_id() != -1:
            return torch.is_grad_enabled() or recomputing()
        return self._phase not in _NO_FORWARD

    def _end_forward(self) -> None:
        for entry in self._recent:
            entry.kept = entry.reference is not None and entry.reference() is not None
        self._recent.clear()

    def _add(self, tensor: torch.Tensor) -> Storage:
        return self._add_storage(tensor.untyped_storage(), self._is_wide(tensor))

    def _is_wide(self, tensor: torch.Tensor) -> bool:
        # A copy of the head's weight, transposed, has the vocabulary last too, but not next to each other in memory.
        return tensor.dim() > 0 and tensor.shape[-1] == self._vocabulary and tensor.stride(-1) == 1

    def _add_storage(self, storage: torch.UntypedStorage, wide: bool) -> Storage:
        key = id(storage)
        entry = Storage(0, wide, on_host())
        entry.reference = weakref.ref(storage, lambda _: self._free(key))
        self._live[key] = entry
        self._resize(entry, storage.nbytes())
        return entry

    def _resize(self, entry: Storage, size: int) -> None:
        if size != entry.bytes:
            self._log.changes.append((entry, size - entry.bytes))
            self._live_bytes += size - entry.bytes
            entry.bytes = size

    def _free(self, key: int) -> None:
        entry = self._live.pop(key)
        entry.reference = None
        self._resize(entry, 0)

    def _mark(self, operator: str) -> None:
        self._log.marks.append((len(self._log.changes), self._phase, operator))

    def _name(self, tensor: torch.Tensor, component: str) -> None:
        for part in plain_tensors(tensor):
            entry = self._entry(part)
            entry.name = entry.name or component

    def _entry(self, tensor: torch.Tensor) -> Storage:
        return self._live.get(id(tensor.untyped_storage())) or self._add(tensor)

    def _name_gradient(self, parameter: torch.Tensor) -> None:
        if parameter.grad is not None:
            self._name(parameter.grad, "gradients")

    def _name_known(self) -> None:
        for tensor in [*self._parameters, *(self._model.buffers() if self._model is not None else [])]:
            self._name(tensor, "weights")
        for parameter in self._parameters:
            self._name_gradient(parameter)
        for state in self._optimizer.state.values() if self._optimizer is not None else ():
            for tensor in plain_tensors(state):
                self._name(tensor, "optimizer state")
        for component, tensors in self._named.items():
            for tensor in tensors() if callable(tensors) else tensors:
                self._name(tensor, component)


def _is_view(storage: torch.UntypedStorage, inputs: Any) -> bool:
    return any(tensor.untyped_storage() is storage for tensor in plain_tensors(inputs))
