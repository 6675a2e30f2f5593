import os
import sys
from pathlib import Path

import pytest

from efficient_training import machine
from efficient_training.machine import Gpu, Machine


def test_this_machine_is_found_without_torch_in_this_process() -> None:
    before = "torch" in sys.modules
    found = machine.detect()
    assert 1 <= found.cores <= (os.cpu_count() or 1)
    assert found.memory_bytes is None or found.memory_bytes > 2**28
    assert found.cpu
    assert ("torch" in sys.modules) == before
    assert set(found.to_json()) == {"system", "cpu", "cores", "memory_bytes", "gpus"}


def test_json_has_what_the_schema_asks_for() -> None:
    made = Machine("Linux", "A CPU", 2, None, (Gpu("H100", 80 * 2**30, "9.0"),), ("a note",)).to_json()
    assert made["gpus"] == [{"name": "H100", "memory_bytes": 80 * 2**30, "capability": "9.0"}]
    assert "notes" not in made


def test_gpus_as_nvidia_smi_prints_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'NVIDIA H100 80GB HBM3, 81559, 9.0'\necho 'NVIDIA L4, 23034, 8.9'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert machine._gpus_of_nvidia_smi() == (
        Gpu("NVIDIA H100 80GB HBM3", 81559 * 2**20, "9.0"),
        Gpu("NVIDIA L4", 23034 * 2**20, "8.9"),
    )
    program.write_text("#!/bin/sh\necho 'No devices were found'\n")
    assert machine._gpus_of_nvidia_smi() == ()
    program.write_text("#!/bin/sh\nexit 9\n")
    assert machine._gpus_of_nvidia_smi() == ()


def test_a_rocm_driver_without_a_build_for_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "KFD", str(tmp_path))
    monkeypatch.setattr(machine, "DEVICE_FILES", (str(tmp_path),))
    monkeypatch.setattr(machine, "_gpus_of_nvidia_smi", lambda: ())
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    gpus, (note,), rocm = machine._gpus()
    assert (gpus, rocm) == ((), False)
    assert "a ROCm build of torch is what sees its GPUs" in note
