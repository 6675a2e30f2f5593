"""What `measure.memory.MemoryTracker` notes: of each storage, and at each moment."""

import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

MOVING = ("c10d::", "_c10d_functional::", "fsdp::")
"""Operators that move data between ranks, or to and from what they move, by the start of their names."""

FORWARD = frozenset({"torch_attn::_varlen_attn", "bitsandbytes::gemm_4bit"})
"""Operators that only forward code runs, but with gradients off as in backward, as they bring a backward of their
own."""

SILENT = ("prim::", "profiler::", "aten::_local_scalar_dense")
"""Operators that only ask or note something, such as `item`."""


@dataclass(frozen=True)
class Sample:
    """Live bytes by component at one moment: after the operator `operator`, the `step`-th that the tracker saw.

    `components` are on the device, `host` what was marked as the host's.
    """

    step: int
    phase: str
    operator: str
    components: Mapping[str, int]
    host: Mapping[str, int] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """Live bytes of all components on the device."""
        return sum(self.components.values())

    @property
    def host_bytes(self) -> int:
        """Live bytes of all components in host memory."""
        return sum(self.host.values())


@dataclass(frozen=True)
class Phase:
    """One phase: the sample at the instant of its peak (the first, where there are several), and the last one."""

    peak: Sample
    end: Sample


@dataclass(eq=False, slots=True)
class Storage:
    """What the tracker knows of one storage, and the component that follows from it once all is over."""

    bytes: int
    wide: bool
    on_host: bool = False
    name: str | None = None
    kept: bool = False
    moved: bool = False
    reference: "weakref.ref[torch.UntypedStorage] | None" = None

    @property
    def component(self) -> str:
        """The component that it counts to."""
        if self.name is None and self.moved:
            return "communication"
        return self.name or ("loss" if self.wide else "activations" if self.kept else "temporaries")


@dataclass
class Log:
    """All changes of storages' sizes, and the moments between them: (changes so far, phase, operator)."""

    changes: list[tuple[Storage, int]] = field(default_factory=list)
    marks: list[tuple[int, str, str]] = field(default_factory=list)
