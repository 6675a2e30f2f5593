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
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

Tensors = Iterable[torch.Tensor] | Callable[[], Iterable[torch.Tensor]]

OUTSIDE = "outside"
"""The phase of whatever happens in the tracker but in no named phase."""

_NO_FORWARD = ("backward", "optimizer step")


@dataclass(frozen=True)
class Sample:
    """Live bytes by component at one moment: after the operator `operator`, the `step`-th that the tracker saw."""

    step: int
    phase: str
    operator: str
    components: Mapping[str, int]

    @property
    def bytes(self) -> int:
        """Live bytes of all components."""
        return sum(self.components.values())


@dataclass(frozen=True)
class Phase:
    """One phase: the sample at the instant of its peak (the first, where there are several), and the last one."""

    peak: Sample
    end: Sample


@dataclass(eq=False, slots=True)
class _Storage:
    bytes: int
    wide: bool
    name: str | None = None
    kept: bool = False
    reference: "weakref.ref[torch.UntypedStorage] | None" = None

    @property
    def component(self) -> str:
        return self.name or ("loss" if self.wide else "activations" if self.kept else "temporaries")


@dataclass
class _Log:
    changes: list[tuple[_Storage, int]] = field(default_factory=list)
    marks: list[tuple[int, str, str]] = field(default_factory=list)


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
    - `loss`: tensors whose last dimension is `vocabulary`: logits, their copies, their gradients. Give it for a
      language model whose vocabulary is no other dimension's size; without it these count as the next two.
    - `activations`: made by forward code (a recomputation during backward is forward code too) and still alive when
      that code is done, that is, at the end of the phase, or when backward goes on after a recomputation.
    - `temporaries`: the rest, the gradients of activations among them.

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
    ) -> None:
        super().__init__()
        self._model, self._optimizer, self._vocabulary = model, optimizer, vocabulary
        self._named: dict[str, Tensors] = {
            name: tensors if callable(tensors) else list(tensors) for name, tensors in (components or {}).items()
        }
        self._phase = OUTSIDE
        self._live: dict[int, _Storage] = {}
        self._live_bytes = 0
        self._log = _Log()
        self._recent: list[_Storage] = []
        self._handles: list[Any] = []
        self._used = False

    @property
    def live(self) -> int:
        """Bytes alive now."""
        return self._live_bytes

    @property
    def timeline(self) -> list[Sample]:
        """A sample after each operator, and at the start and end of each phase. Read it after the tracker has ended."""
        live: Counter[str] = Counter()
        samples, done = [], 0
        for step, (length, phase, operator) in enumerate(self._log.marks):
            for storage, delta in self._log.changes[done:length]:
                live[storage.component] += delta
            done = length
            samples.append(Sample(step, phase, operator, {name: size for name, size in live.items() if size}))
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
        self._name_known()
        for parameter in self._parameters():
            if parameter.requires_grad:
                self._handles.append(parameter.register_post_accumulate_grad_hook(self._name_gradient))
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._name_known()
        self._end_forward()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        # What was measured is kept, not what it was measured on.
        self._model, self._optimizer, self._named = None, None, {}

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        forward = self._in_forward()
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                self._see(tensor, func, args, kwargs, forward)
        self._mark(func.name())
        return out

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
            return torch.is_grad_enabled()
        return self._phase not in _NO_FORWARD

    def _end_forward(self) -> None:
        for entry in self._recent:
            entry.kept = entry.reference is not None and entry.reference() is not None
        self._recent.clear()

    def _add(self, tensor: torch.Tensor) -> _Storage:
        storage = tensor.untyped_storage()
        key = id(storage)
        wide = self._vocabulary is not None and tensor.dim() > 0 and tensor.shape[-1] == self._vocabulary
        entry = _Storage(0, wide)
        entry.reference = weakref.ref(storage, lambda _: self._free(key))
        self._live[key] = entry
        self._resize(entry, storage.nbytes())
        return entry

    def _resize(self, entry: _Storage, size: int) -> None:
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

    def _parameters(self) -> list[torch.Tensor]:
        return list(self._model.parameters()) if self._model is not None else []

    def _name(self, tensor: torch.Tensor, component: str) -> None:
        entry = self._live.get(id(tensor.untyped_storage())) or self._add(tensor)
        entry.name = entry.name or component

    def _name_gradient(self, parameter: torch.Tensor) -> None:
        if parameter.grad is not None:
            self._name(parameter.grad, "gradients")

    def _name_known(self) -> None:
        for tensor in [*self._parameters(), *(self._model.buffers() if self._model is not None else [])]:
            self._name(tensor, "weights")
        for parameter in self._parameters():
            self._name_gradient(parameter)
        for state in self._optimizer.state.values() if self._optimizer is not None else ():
            for leaf in tree_leaves(state):
                if isinstance(leaf, torch.Tensor):
                    self._name(leaf, "optimizer state")
        for component, tensors in self._named.items():
            for tensor in tensors() if callable(tensors) else tensors:
                self._name(tensor, component)


def _is_view(storage: torch.UntypedStorage, inputs: Any) -> bool:
    return any(isinstance(leaf, torch.Tensor) and leaf.untyped_storage() is storage for leaf in tree_leaves(inputs))
