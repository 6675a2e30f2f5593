"""One recipe measured: what comes back, out of memory among it."""

import json
import os
import shutil
import signal
import sys
import threading
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from efficient_training.errors import UserError
from efficient_training.fields import to_mapping
from efficient_training.ledger import PHASES, Ledger
from efficient_training.measure.isolated import IsolatedRunFailed
from efficient_training.measure.oom import out_of_memory
from efficient_training.measured import SETUP, measure_isolated, measure_step, peak_on_gpu, run_timeline
from efficient_training.models import ModelShape
from efficient_training.plain import build_plain
from efficient_training.recipe import Recipe
from efficient_training.trace import ledger_of, trace
from efficient_training.workload import Workload

SHAPE = ModelShape("q2", "qwen2", 64, 5, 4, 2, 16, 176, 300, 512, True)
WORKLOAD = Workload(SHAPE, 32, 64)
linux = pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_AS is enforced on Linux")


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(2),
        Recipe(1, optimizer="fused"),
        Recipe(2, precision="bf16-autocast", checkpointing="full"),
        Recipe(2, precision="bf16", checkpointing="selective", loss="chunked"),
    ],
    ids=str,
)
def test_the_real_step_has_the_bytes_of_the_trace(recipe: Recipe) -> None:
    real = ledger_of(run_timeline(WORKLOAD, recipe), "run")
    assert real.entries == trace(WORKLOAD, recipe, "cpu").entries


def test_measure_step_returns_json_with_ledger_and_times() -> None:
    recipe = Recipe(2, precision="bf16-autocast", optimizer="fused")
    made = measure_step(asdict(WORKLOAD), to_mapping(recipe), steps=2, warmup=1, rates=True)
    assert json.loads(json.dumps(made)) == made
    assert made["out_of_memory"] is None
    assert made["cuda"] is None
    assert Ledger.from_json(made["ledger"]).entries == trace(WORKLOAD, recipe, "cpu").entries
    assert set(made["seconds"]) == {*PHASES, "step"}
    assert made["seconds"]["step"]["median"] >= max(made["seconds"][name]["median"] for name in PHASES)
    assert made["rates"]["matmul"] > 0
    assert made["rates"]["update"] > 0
    assert made["loss"] == pytest.approx(torch.tensor(SHAPE.vocab).log().item(), rel=0.05)


def test_the_plain_loop_is_measured_as_it_is_traced() -> None:
    made = measure_step(asdict(WORKLOAD), {"micro_batch": 2}, steps=1, warmup=1, plain=True)
    traced = trace(WORKLOAD, Recipe(2), "cpu", build=build_plain)
    assert Ledger.from_json(made["ledger"]).phase_peak("optimizer step") == traced.phase_peak("optimizer step")
    logits = 2 * 32 * SHAPE.vocab * 4
    without = trace(WORKLOAD, Recipe(2), "cpu").phase_peak("optimizer step")
    assert traced.phase_peak("optimizer step") == without + logits + 4  # the outputs' logits, and their loss


def test_a_fault_in_the_arguments_is_no_measurement() -> None:
    with pytest.raises(UserError, match="measure_step: recipe has no field 'microbatch'"):
        measure_step(asdict(WORKLOAD), {"microbatch": 2})


@linux
def test_out_of_memory_is_a_result_with_phase_and_bytes() -> None:
    """Logits of 4 x 512 x 60,000 fp32 numbers do not fit into what may be mapped: an allocation that fails."""
    wide = ModelShape("wide", "qwen2", 64, 2, 4, 2, 16, 176, 60_000, 512, True)
    work = Workload(wide, 512, 4 * 512)
    made = measure_isolated(work, Recipe(4), steps=1, warmup=1, spare_bytes=2**28)
    assert made["out_of_memory"]["phase"] == "forward"
    assert made["out_of_memory"]["requested"] == 4 * 512 * 60_000 * 4
    assert made["reason"] == "out of memory in forward, which asked for 468.8 MiB more"
    fits = measure_isolated(work, Recipe(4, loss="chunked"), steps=1, warmup=1, spare_bytes=2**29)
    assert fits["out_of_memory"] is None


@linux
def test_out_of_memory_before_the_first_step() -> None:
    big = ModelShape("big", "llama", 4096, 8, 32, 32, 128, 11008, 32000, 512, False)
    made = measure_isolated(Workload(big, 32, 32), Recipe(1), spare_bytes=2**28)
    assert made["out_of_memory"]["phase"] == SETUP
    assert made["cuda"] is None


@linux
def test_a_process_that_the_system_kills_is_out_of_memory_without_bytes() -> None:
    """The kernel's killer sends signal 9 and no message; here the test sends it, to a run that would never end."""
    made: list[dict[str, Any]] = []
    runner = threading.Thread(target=lambda: made.append(measure_isolated(WORKLOAD, Recipe(2), steps=10**9)))
    runner.start()
    deadline = time.monotonic() + 120
    while not (pids := _measuring_processes()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(pids) == 1
    os.kill(pids[0], signal.SIGKILL)
    runner.join(timeout=60)
    assert made[0]["out_of_memory"] == {"phase": "unknown", "requested": None, "allocated": None, "reserved": None}
    assert made[0]["reason"] == "out of memory: the system ended the process (signal 9)"
    assert made[0]["cuda"] is None


def _measuring_processes() -> list[int]:
    """This process's children that measure."""
    children = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    pids = [int(pid) for file in children for pid in file.read_text().split()]
    return [pid for pid in pids if b"measured:measure_step" in Path(f"/proc/{pid}/cmdline").read_bytes()]


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler on a CPU")
def test_a_compiled_step_is_measured_but_has_no_ledger() -> None:
    shallow = replace(WORKLOAD, model=replace(SHAPE, layers=1))
    compiled, eager = (
        measure_step(asdict(shallow), {"micro_batch": 2, "compile": compile}, steps=1, warmup=1)
        for compile in (True, False)
    )
    assert compiled["loss"] == pytest.approx(eager["loss"], rel=1e-5)
    assert compiled["ledger"] is None
    assert compiled["seconds"]["step"]["median"] > 0
    for view in (run_timeline, trace):
        with pytest.raises(UserError, match="compiled model has no"):
            view(shallow, Recipe(2, compile=True))


def test_a_history_needs_cuda() -> None:
    with pytest.raises(UserError, match="measure_step: history needs device cuda, got cpu"):
        measure_step(asdict(WORKLOAD), {"micro_batch": 2}, history="snapshot.pickle")


def test_other_errors_are_not_taken_for_out_of_memory() -> None:
    assert out_of_memory(RuntimeError("shapes do not match"), "forward") is None
    assert out_of_memory(ValueError("DefaultCPUAllocator"), "forward") is None
    with pytest.raises(IsolatedRunFailed):
        measure_isolated(WORKLOAD, Recipe(2), device="no such device")


def test_the_message_of_cuda_is_read() -> None:
    message = (
        "CUDA out of memory. Tried to allocate 2.32 GiB. GPU 0 has a total capacity of 23.65 GiB of which 1.10 GiB is "
        "free. Of the allocated memory 20.51 GiB is allocated by PyTorch, and 1.02 GiB is reserved by PyTorch but "
        "unallocated."
    )
    made = out_of_memory(torch.OutOfMemoryError(message), "backward")
    assert made is not None
    assert made.requested == round(2.32 * 2**30)
    assert made.reason == "out of memory in backward, which asked for 2,375.7 MiB more"


def test_a_finished_measurement_is_kept_for_a_run_that_broke_off(tmp_path: Path) -> None:
    first = measure_isolated(WORKLOAD, Recipe(2), keep=tmp_path, steps=1, warmup=1)
    assert measure_isolated(WORKLOAD, Recipe(2), keep=tmp_path, steps=1, warmup=1) == first
    assert len(list(tmp_path.iterdir())) == 1
    other = measure_isolated(WORKLOAD, Recipe(1), keep=tmp_path, steps=1, warmup=1)
    assert other["seconds"] != first["seconds"]
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a GPU")
def test_without_a_gpu_there_is_a_reason_in_place_of_a_peak() -> None:
    assert peak_on_gpu(WORKLOAD, Recipe(2), 1) == (None, "not run here: needs a CUDA GPU")
