"""One recipe, run for real: its ledger, its times by phase, and what the allocator and the process held.

`measure_step` takes and returns JSON, so that each configuration can have a process of its own (`measure_isolated`).
Running out of memory is one of its results.
"""

import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from .errors import UserError
from .fields import from_mapping, to_mapping
from .measure.cuda import CudaMemory, process_memory
from .measure.isolated import IsolatedRunFailed, run_isolated
from .measure.oom import PhaseName, out_of_memory
from .measure.rates import matmul_rate, update_rate
from .measure.snapshot import failure_in, read_snapshot, recorded
from .measure.timing import time_steps
from .plain import build_plain
from .recipe import Recipe
from .run import AUTOCAST, Trainer, build_trainer, random_window
from .trace import Timeline, ledger_of, track_step
from .workload import Workload

Json = dict[str, Any]
KEPT_FOR_S = 3600
"""A finished measurement is good for so long: for a run that broke off and goes on, not for another."""

SETUP = "setup"
"""The phase of an error before the first step: building the model."""


def run_timeline(workload: Workload, recipe: Recipe, device: str = "cpu", seed: int = 0) -> Timeline:
    """Samples of one real step, by phase (`trace.track_step`), on random weights and random tokens.

    Raises `UserError` for a compiled model, whose fused kernels take memory that the tracker does not see.
    """
    if recipe.compile:
        raise UserError("run: a compiled model has no ledger; measure it on a GPU, or set compile: false")
    torch.manual_seed(seed)
    trainer = build_trainer(workload.model, recipe, device)
    return track_step(trainer, random_window(workload, recipe, device), workload.model.vocab)


def measure_step(
    workload: Mapping[str, Any],
    recipe: Mapping[str, Any],
    device: str = "cpu",
    steps: int = 5,
    warmup: int = 2,
    plain: bool = False,
    rates: bool = False,
    spare_bytes: int | None = None,
    history: str | None = None,
    seed: int = 0,
) -> Json:
    """Run `recipe` (a mapping of its fields, as `workload`) and measure it, in a process that does nothing else.

    Memory, time and components come from different steps, since each instrument would disturb the others. Returns

    - `out_of_memory`: `None`, or the phase and the bytes asked for (`measure.oom.OutOfMemory`), and then, of the
      rest, only `cuda`, `None`, a `reason` for records, and with `history` the `failure` (`measure.snapshot.Failure`);
    - `loss`: of the first step;
    - `ledger`: by the tracker, components at each phase's peak; `None` for a compiled model, whose kernels it does not
      see;
    - `cuda`: peaks of allocator and process by phase (`measure.cuda`), `None` elsewhere;
    - `seconds`: by phase, and for `step` as a whole, median and interquartile range over `steps`, after `warmup`;
    - `peak_rss_bytes` of the process, `device`, and with `rates` the device's measured roofs.

    `plain` takes the plain loop (`plain.PlainTrainer`). `spare_bytes` limits what CUDA's allocator may reserve or, on
    a CPU, what this process may map beyond what it has mapped before it builds the model (RLIMIT_AS, Linux; one
    thread), so that a CPU can run out of memory too. `history` is a file for the record of CUDA's allocator.
    Raises `UserError` for a history on a CPU.
    """
    work, how = from_mapping(Workload, workload, "measure_step"), from_mapping(Recipe, recipe, "measure_step")
    where, target = PhaseName(SETUP), torch.device(device)
    if history is not None and target.type != "cuda":
        raise UserError(f"measure_step: history needs device cuda, got {device}")
    if spare_bytes is not None:
        _limit(target, spare_bytes)
    build = build_plain if plain else build_trainer
    try:
        with recorded(Path(history)) if history else nullcontext():
            measured = _measure(work, how, target, steps, warmup, build, where, seed)
    except (RuntimeError, MemoryError) as error:
        failed = out_of_memory(error, where.name, target)
        if failed is None:
            raise
        result: Json = {"out_of_memory": asdict(failed), "reason": failed.reason, "cuda": None}
        found = failure_in(read_snapshot(Path(history))) if history else None
        return result | ({"failure": asdict(found)} if found else {})
    if rates:
        dtype = torch.bfloat16 if how.precision == "bf16" else AUTOCAST.get(how.precision, torch.float32)
        size = 8192 if target.type == "cuda" else 2048
        measured["rates"] = {"matmul": matmul_rate(target, dtype, size), "update": update_rate(target)}
    return measured


def _measure(
    work: Workload,
    how: Recipe,
    device: torch.device,
    steps: int,
    warmup: int,
    build: Callable[..., Trainer],
    where: PhaseName,
    seed: int,
) -> Json:
    torch.manual_seed(seed)
    trainer = build(work.model, how, device)
    window = random_window(work, how, device)
    losses: list[torch.Tensor] = []
    seconds = time_steps(
        lambda timer: losses.append(trainer.step(window, where.watch(timer.phase))), device, steps=steps, warmup=warmup
    )
    cuda: Json | None = None
    beyond: Json = {}
    if device.type == "cuda":
        memory = CudaMemory(device)
        trainer.step(window, where.watch(memory.phase))
        process = process_memory(device)
        cuda = {
            "phases": {name: asdict(peak) for name, peak in memory.phases.items()},
            "process": asdict(process),
        }
        highest = max(memory.phases.values(), key=lambda peak: peak.requested)
        beyond = {
            "rounding_bytes": highest.allocated - highest.requested,
            "reserved_bytes": max(peak.reserved for peak in memory.phases.values()),
            "context_bytes": process.context,
        }
    ledger = None
    if not how.compile:
        timeline = track_step(trainer, window, work.model.vocab, warmed=True)
        ledger = replace(ledger_of(timeline, "run"), **beyond)
    return {
        "out_of_memory": None,
        "loss": float(losses[0]),
        "ledger": ledger and ledger.to_json(),
        "cuda": cuda,
        "seconds": {name: {"median": taken.median_s, "iqr": taken.iqr_s} for name, taken in seconds.items()},
        "peak_rss_bytes": _peak_rss(),
        "device": _device_name(device),
    }


def measure_isolated(
    workload: Workload, recipe: Recipe, *, keep: Path | None = None, timeout_s: float | None = None, **options: Any
) -> Json:
    """`measure_step` in a process of its own, with `options` passed on.

    A process that the system kills for memory is a result too: `out_of_memory` without bytes. With `keep`, a folder,
    the result of the same call within the last hour is taken from there, so that a run that broke off goes on where
    it was. Raises `IsolatedRunFailed` on any other failure.
    """
    arguments = {"workload": to_mapping(workload), "recipe": to_mapping(recipe), **options}
    path = keep / f"{_key(arguments)}.json" if keep else None
    if path is not None and path.exists() and time.time() - path.stat().st_mtime < KEPT_FOR_S:
        kept: Json = json.loads(path.read_text(encoding="utf-8"))
        return kept
    try:
        result: Json = run_isolated(f"{__name__}:measure_step", arguments, timeout_s=timeout_s)
    except IsolatedRunFailed as error:
        if "killed by signal 9" not in str(error):
            raise
        unknown = {"phase": "unknown", "requested": None, "allocated": None, "reserved": None}
        reason = "out of memory: the system ended the process (signal 9)"
        return {"out_of_memory": unknown, "reason": reason, "cuda": None}
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".{os.getpid()}.part")
        part.write_text(json.dumps(result), encoding="utf-8")
        part.replace(path)
    return result


def peak_on_gpu(
    workload: Workload, recipe: Recipe, expected_bytes: int, keep: Path | None = None
) -> tuple[int | None, str | None]:
    """The peak of requested bytes of a step on this machine's GPU, in a process of its own.

    `expected_bytes`, of a price or a trace, decides whether the GPU is large enough: they must leave a tenth of it
    free. Where there is no measurement the reason stands beside `None`.
    """
    if not torch.cuda.is_available():
        return None, "not run here: needs a CUDA GPU"
    memory = torch.cuda.get_device_properties(0).total_memory
    if expected_bytes > 0.9 * memory:
        return None, f"not run here: needs a GPU with {expected_bytes / 0.9e9:.0f} GB, found {memory / 1e9:.0f}"
    result = measure_isolated(workload, recipe, device="cuda", steps=1, warmup=1, keep=keep)
    if result["cuda"] is None:
        return None, result["reason"]
    return max(peak["requested"] for peak in result["cuda"]["phases"].values()), None


def _key(arguments: Json) -> str:
    sources = [path.read_text(encoding="utf-8") for path in sorted(Path(__file__).parent.rglob("*.py"))]
    made = [arguments, sources, torch.__version__, torch.cuda.is_available() and torch.cuda.get_device_name()]
    return hashlib.sha256(json.dumps(made, sort_keys=True).encode()).hexdigest()[:32]


def _limit(device: torch.device, spare: int) -> None:
    if device.type == "cuda":
        whole = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, spare / whole), device)
    else:
        _limit_address_space(spare)


def _limit_address_space(spare: int) -> None:
    import resource

    import transformers.models.qwen2.modeling_qwen2  # noqa: F401  maps its libraries now, not at the first step

    torch.set_num_threads(1)  # each further thread would map a stack, and an arena of the C library, of its own
    mapped = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * os.sysconf("SC_PAGE_SIZE")
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (mapped + spare, hard))


def _peak_rss() -> int | None:
    try:
        import resource
    except ImportError:  # Windows
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
