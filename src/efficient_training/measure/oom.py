"""An out-of-memory error as a result: in which phase, how much was asked for, and what the allocator held then."""

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import torch

UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
ASKED = re.compile(r"[Tt]ried to allocate ([\d.]+) (bytes|[KMGT]iB)")
ON_CPU = "DefaultCPUAllocator"


@dataclass(frozen=True)
class OutOfMemory:
    """One failed allocation. Bytes are `None` where the error does not tell, or the allocator keeps no count (CPU).

    A CUDA error states the request to two decimals of its unit, so `requested` is that close and no closer.
    """

    phase: str
    requested: int | None
    allocated: int | None
    reserved: int | None

    @property
    def reason(self) -> str:
        """For a record's `reason`."""
        asked = "" if self.requested is None else f", which asked for {self.requested / 2**20:,.1f} MiB more"
        return f"out of memory in {self.phase}{asked}"


def out_of_memory(error: BaseException, phase: str, device: torch.device | None = None) -> OutOfMemory | None:
    """What `error` says about memory; `None` where it is another error.

    CUDA raises `torch.OutOfMemoryError`; the CPU's allocator a plain `RuntimeError` with its name in the message.
    """
    on_cpu = isinstance(error, RuntimeError) and ON_CPU in str(error)
    if not (on_cpu or isinstance(error, torch.OutOfMemoryError | MemoryError)):
        return None
    found = ASKED.search(str(error))
    requested = round(float(found[1]) * UNITS[found[2]]) if found else None
    if device is None or device.type != "cuda":
        return OutOfMemory(phase, requested, None, None)
    stats = torch.cuda.memory_stats(device)
    return OutOfMemory(
        phase, requested, stats.get("allocated_bytes.all.peak", 0), stats.get("reserved_bytes.all.peak", 0)
    )


class PhaseName:
    """Remembers the phase that a step is in, also when it has ended there: hand `watch(...)` to `Trainer.step`."""

    def __init__(self, name: str) -> None:
        self.name = name

    def watch(
        self, phase: Callable[[str], AbstractContextManager[None]]
    ) -> Callable[[str], AbstractContextManager[None]]:
        """As `phase`, and noting the name."""

        @contextmanager
        def watched(name: str) -> Iterator[None]:
            self.name = name
            with phase(name):
                yield

        return watched
