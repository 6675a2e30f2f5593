"""This machine: system, processor, memory and GPUs, found without importing torch into this process."""

import csv
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

GIB = 2**30
TIMEOUT_S = 120
KFD = "/dev/kfd"
DEVICE_FILES = ("/dev/nvidiactl", "/dev/dxg", KFD)
"""What the drivers of NVIDIA, WSL and ROCm show on Linux; torch finds no GPU where there is none of them."""

PROBE = """
import json, torch
gpus = []
for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
    found = torch.cuda.get_device_properties(index)
    gpus.append({"name": found.name, "memory_bytes": found.total_memory, "capability": f"{found.major}.{found.minor}"})
print(json.dumps({"gpus": gpus, "rocm": torch.version.hip is not None}))
"""


@dataclass(frozen=True)
class Gpu:
    """One GPU: its memory in bytes, its compute capability as "major.minor"."""

    name: str
    memory_bytes: int
    capability: str


@dataclass(frozen=True)
class Machine:
    """One machine. `cores` and `memory_bytes` are those that this process may use; `None` where unknown."""

    system: str
    cpu: str
    cores: int
    memory_bytes: int | None
    gpus: tuple[Gpu, ...] = ()
    notes: tuple[str, ...] = ()
    """Why something that seems to be there is not used, a line each."""
    rocm: bool = False
    """Whether the GPUs are ROCm's. Their `capability` is then no compute capability of NVIDIA's."""

    def to_json(self) -> dict[str, Any]:
        """The `machine` of `schema/provenance.schema.json`."""
        return {
            **{key: value for key, value in asdict(self).items() if key not in ("notes", "rocm")},
            "gpus": self._gpus(),
        }

    def _gpus(self) -> list[dict[str, Any]]:
        return [asdict(gpu) for gpu in self.gpus]


@cache
def detect() -> Machine:
    """The machine on which this runs. Asks torch for GPUs, in a process of its own, where torch is installed."""
    gpus, notes, rocm = _gpus()
    system = f"{platform.system()} {platform.machine()}"
    return Machine(system[:100], _cpu()[:100], _cores(), _memory_bytes(), gpus, notes, rocm)


def _cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    if platform.system() == "Darwin":
        return _output(["sysctl", "-n", "machdep.cpu.brand_string"]) or platform.machine()
    return platform.processor() or platform.machine() or "unknown"


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _memory_bytes() -> int | None:
    try:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii").strip()
        return min(total, int(limit)) if limit.isdigit() else total
    except OSError:
        return total


def _gpus() -> tuple[tuple[Gpu, ...], tuple[str, ...], bool]:
    """The GPUs, notes on them, and whether they are ROCm's."""
    if platform.system() == "Linux" and not any(Path(path).exists() for path in DEVICE_FILES):
        return (), (), False
    shown = _gpus_of_nvidia_smi()
    other = (f"ROCm's driver is here ({KFD}): a ROCm build of torch is what sees its GPUs",)
    amd = other if not shown and Path(KFD).exists() else ()
    if importlib.util.find_spec("torch") is None:
        return (
            shown,
            ("torch is not installed here, so these GPUs are as nvidia-smi shows them",) if shown else amd,
            False,
        )
    try:
        run = subprocess.run(
            [sys.executable, "-c", PROBE], capture_output=True, text=True, timeout=TIMEOUT_S, check=True
        )
        found = json.loads(run.stdout.splitlines()[-1])
        gpus = tuple(Gpu(**fields) for fields in found["gpus"])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        lines = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
        return (), (f"torch could not be asked for GPUs: {lines[-1] if lines else error}",), False
    if gpus:
        return gpus, (), found["rocm"]
    if shown:
        why = f"nvidia-smi shows {shown[0].name}, but this build of torch cannot use it: install a CUDA build"
        return (), (why,), False
    return (), amd, False


def _gpus_of_nvidia_smi() -> tuple[Gpu, ...]:
    fields = "name,memory.total,compute_cap"
    text = _output(["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"])
    try:
        rows = [[cell.strip() for cell in row] for row in csv.reader(text.splitlines())]
        return tuple(Gpu(name, int(mebibytes) * 2**20, capability) for name, mebibytes, capability in rows)
    except ValueError:
        return ()


def _output(command: list[str]) -> str:
    """What `command` prints; nothing where it is not there or fails."""
    if shutil.which(command[0]) is None:
        return ""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
