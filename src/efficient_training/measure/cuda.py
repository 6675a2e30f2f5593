"""Memory of a CUDA device by phase, as its caching allocator, its driver and the process see it.

Four numbers differ, each larger than the one before: requested (what tensors ask for), allocated (rounded up to blocks
of 512 bytes), reserved (what the allocator keeps from the driver, fragmentation included), and used by the process
(the CUDA context and libraries included), which is what `nvidia-smi` shows.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch


@dataclass(frozen=True)
class PhaseMemory:
    """Peaks of one phase in bytes; `retries` counts how often the allocator had to return its cache and try again."""

    requested: int
    allocated: int
    active: int
    reserved: int
    retries: int


@dataclass
class CudaMemory:
    """Peaks by phase: hand `memory.phase` to `Trainer.step`. Peaks are reset where a phase begins."""

    device: torch.device
    phases: dict[str, PhaseMemory] = field(default_factory=dict)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measure what runs inside the block; a phase entered again keeps the larger of its peaks."""
        torch.cuda.reset_peak_memory_stats(self.device)
        retries = torch.cuda.memory_stats(self.device).get("num_alloc_retries", 0)
        try:
            yield
        finally:
            torch.cuda.synchronize(self.device)
            stats = torch.cuda.memory_stats(self.device)
            before = self.phases.get(name, PhaseMemory(0, 0, 0, 0, 0))
            self.phases[name] = PhaseMemory(
                requested=max(before.requested, stats.get("requested_bytes.all.peak", 0)),
                allocated=max(before.allocated, stats.get("allocated_bytes.all.peak", 0)),
                active=max(before.active, stats.get("active_bytes.all.peak", 0)),
                reserved=max(before.reserved, stats.get("reserved_bytes.all.peak", 0)),
                retries=before.retries + stats.get("num_alloc_retries", 0) - retries,
            )


@dataclass(frozen=True)
class ProcessMemory:
    """Bytes that a process holds on a device, and of these `context`: what PyTorch's allocator has not reserved.

    The context has the driver's state, loaded kernels and the libraries' own workspaces. Both are `None` exactly where
    the driver cannot be asked, and `reason` then says why, for a record.
    """

    bytes: int | None
    context: int | None
    reason: str | None = None


def process_memory(device: torch.device) -> ProcessMemory:
    """What this process holds on `device` according to the driver (NVML), as `nvidia-smi` shows it."""
    try:
        import pynvml
    except ImportError:
        return ProcessMemory(None, None, "not measured: needs the package nvidia-ml-py, which asks the driver")
    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(device).uuid}")
        running = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
    except pynvml.NVMLError as error:
        return ProcessMemory(None, None, f"not measured: the driver cannot be asked ({error})")
    mine = [process.usedGpuMemory for process in running if process.pid == os.getpid() and process.usedGpuMemory]
    if not mine:
        reason = "not measured: the driver lists no process of this number, as in a container that numbers its own"
        return ProcessMemory(None, None, reason)
    return ProcessMemory(int(mine[0]), int(mine[0]) - torch.cuda.memory_reserved(device))


def fragmented_bytes() -> int:
    """Reserved bytes after half of a GiB of tensors was freed in pieces and two pieces' worth was asked for.

    For a process of its own: what it shows is how the allocator is set (`PYTORCH_ALLOC_CONF`).
    """
    mib = 2**20
    whole = torch.empty(1024 * mib, dtype=torch.uint8, device="cuda")
    del whole
    pieces = [torch.empty(64 * mib, dtype=torch.uint8, device="cuda") for _ in range(16)]
    del pieces[::2]
    more = torch.empty(128 * mib, dtype=torch.uint8, device="cuda")
    reserved = torch.cuda.memory_reserved()
    del pieces, more
    return reserved
