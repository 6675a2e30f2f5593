import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from efficient_training import cli, machine
from efficient_training.claims import Claim
from efficient_training.display import METADATA_KEY
from efficient_training.machine import GIB, Gpu, Machine
from efficient_training.records import Record

CPU = "name: cpu\ntitle: Any CPU\nrequires:\n  device: cpu\n"
GPU = "name: gpu\ntitle: One GPU\nrequires: {device: cuda, memory_gib: 8}\n"
CLUSTER = (
    "name: cluster\ntitle: Many\nrequires: {device: cuda, ranks: 2}\ncluster: {launcher: slurm, capability: '8.0'}\n"
)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--nonsense"], "No such option: --nonsense; see `efficient-training --help`"),
        (["perform"], "No such command 'perform'"),
        (["execute", "--tier"], "Option '--tier' requires an argument; see `efficient-training --help`"),
        (["execute", "x"], "Got unexpected extra argument"),
        (["serve", "--port", "no"], "Invalid value for '--port'"),
        (["execute", "--notebook", "7"], "--notebook 7: no such notebook; known: 01-memory"),
        (["execute", "--tier", "tpu"], "--tier tpu: no such tier; known: cpu"),
        (["execute", "--edition", "My Machine"], "--edition 'My Machine': an edition's name has up to 64 of a-z"),
        (
            ["execute", "--edition", "reference"],
            "--edition reference: this name is the committed edition's; choose another",
        ),
        (["execute", "--reference", "--tier", "cpu"], "--reference takes neither --tier nor --edition"),
        (["status", "--edition", "none"], "results/none: no such edition; known: reference"),
        (["render", "--renderer", "latex"], "--renderer latex: no such renderer; known: auto, quarto, preview"),
        (["render", "--edition", "../x"], "--edition '../x': an edition's name has"),
    ],
)
def test_bad_input_is_one_line_on_stderr_and_exit_2(
    project: Any, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    if arguments[0] == "execute" and arguments[1] in ("--notebook", "--tier"):
        pytest.importorskip("papermill")
    project.notebook("01-memory", ["pass"])
    assert project.run(*arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert message in err
    assert err.count("\n") == 1


def test_a_bad_tier_is_bad_input_for_every_command_that_reads_it(
    project: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("papermill")
    project.tier("gpu", GPU + "paint: green\n")
    for command in ("tiers", "status", "execute"):
        assert project.run(command) == 2
        assert "environments/gpu/tier.yml: invalid tier at the object" in capsys.readouterr().err


def test_outside_the_project(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.run(["status"]) == 2
    assert "not inside the efficient-training project; change to a folder of your clone" in capsys.readouterr().err


def test_nothing_to_execute(project: Any, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("papermill")
    assert project.run("execute") == 2
    assert "holds no notebook NN-slug.ipynb" in capsys.readouterr().err


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["--help"]) == 0
    out = capsys.readouterr().out
    for command in ("execute", "render", "serve", "status", "check", "tiers", "editions", "profile", "presets"):
        assert f"\n  {command} " in out


def test_the_command_line_needs_no_torch_and_no_runner() -> None:
    code = """import sys
for name in ("torch", "papermill", "nbclient", "matplotlib", "IPython"):
    sys.modules[name] = None
from efficient_training import cli, editions, machine, outputs, provenance, status, tiers
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    code = "import sys; import efficient_training.cli; assert 'nbformat' not in sys.modules, 'slow to import'"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", ["typer", "yaml"])
def test_an_environment_without_a_package_is_one_line(project: Any, name: str) -> None:
    code = f"import sys; sys.modules[{name!r}] = None; from efficient_training.__main__ import main; main()"
    run = subprocess.run([sys.executable, "-c", code, "tiers"], capture_output=True, text=True, check=False)
    assert run.returncode == 2
    assert run.stderr.startswith(f"error: {sys.prefix}: this environment lacks the package {name}; delete that folder")
    assert run.stderr.count("\n") == 1


def test_tiers_shows_the_machine_and_why_not(
    project: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    project.tier("gpu", GPU)
    monkeypatch.setattr(machine, "detect", lambda: Machine("Linux x86_64", "A CPU", 8, 32 * GIB))
    monkeypatch.setattr("shutil.which", lambda _: None)  # whether there is an sbatch here or not
    assert project.run("tiers") == 0
    out = capsys.readouterr().out
    assert "A CPU, 8 cores, 32.0 GiB memory" in out
    assert "gpu     none" in out
    assert "needs a CUDA GPU, found none" in out
    assert "`make run` runs at tier cpu here" in out
    assert "cluster" not in out


def test_tiers_says_how_to_ask_for_rocm(
    project: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    project.tier("gpu", GPU.replace("8}", "8, rocm: true}"))
    amd = Machine("Linux", "A CPU", 8, None, (Gpu("MI300X", 192 * GIB, "9.4"),), rocm=True)
    monkeypatch.setattr(machine, "detect", lambda: amd)
    assert project.run("tiers") == 0
    out = capsys.readouterr().out
    assert "MI300X, 192.0 GiB, ROCm" in out
    assert "`make run TIER=gpu TORCH_INDEX=...` (PyTorch's index of ROCm builds) runs at tier gpu" in out


def test_a_port_that_is_taken_is_said_before_the_book_is_rendered(
    project: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "_render", lambda *_: pytest.fail("rendered"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert project.run("serve", "--port", port) == 2
    assert f"port {port} is in use; choose another with --port" in capsys.readouterr().err


def test_tiers_tells_what_is_not_installed_from_what_is_not_there(
    project: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    project.tier("cpu", CPU + "  memory_gib: 4\n  packages: [no-such-thing]\n")
    monkeypatch.setattr(machine, "detect", lambda: Machine("Linux x86_64", "A CPU", 8, 32 * GIB))
    assert project.run("tiers") == 0
    out = capsys.readouterr().out
    assert "yes   needs no-such-thing, not installed here (`make run` installs it)" in out
    assert "`make run` installs what is missing and runs at tier cpu here" in out
    monkeypatch.setattr(machine, "detect", lambda: Machine("Linux x86_64", "A CPU", 8, 1 * GIB))
    assert project.run("tiers") == 0
    out = capsys.readouterr().out
    assert "no    needs 4 GiB of memory, found 1.0 GiB; needs no-such-thing" in out
    assert "`make run` cannot run here: no tier is met" in out


def test_tiers_prints_the_command_for_several_gpus_and_for_slurm(
    project: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    project.tier("gpu", GPU)
    project.tier("cluster", CLUSTER)
    gpus = (Gpu("H100 [80GB]", 80 * GIB, "9.0"),) * 2
    monkeypatch.setattr(machine, "detect", lambda: Machine("Linux", "A CPU", 8, None, gpus, ("a note",)))
    (tmp_path / "bin").mkdir()
    sbatch = tmp_path / "bin/sbatch"
    sbatch.write_text("#!/bin/sh\n")
    sbatch.chmod(0o755)
    monkeypatch.setenv("PATH", f"{sbatch.parent}:{os.environ['PATH']}")
    assert project.run("tiers") == 0
    out = capsys.readouterr().out
    assert out.count("H100 [80GB], 80.0 GiB, compute capability 9.0") == 2
    assert "several GPUs are here: `efficient-training execute --tier cluster`" in out
    assert "SLURM is here: set `launcher: slurm` in environments/cluster/tier.yml" in out
    assert "note    a note" in out


def shown(item: Record | Claim) -> dict[str, Any]:
    return {
        **{"output_type": "display_data", "data": {"text/plain": item.text}},
        "metadata": {METADATA_KEY: item.to_json()},
    }


def test_editions_lists_what_each_says_and_what_is_wrong_with_it(
    project: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    project.notebook("01-memory", ["pass"])
    project.notebook("02-precision", ["pass"])
    peak = Record("memory.peak", 3, "MiB", "measured")
    claims = [
        Claim(f"memory.c{i}", "s", "hardware", held, ("memory.peak",), "e", None if held is not None else "no GPU")
        for i, held in enumerate((True, True, False, None))
    ]
    gpu = {"name": "H100 [80GB]", "memory_bytes": 80 * GIB, "capability": "9.0"}
    there = {"system": "Linux", "cpu": "A CPU", "cores": 8, "memory_bytes": None, "gpus": [gpu]}
    outputs = {"c1": [shown(peak), *map(shown, claims)]}
    project.edition("lab-gpu", "01-memory", outputs, tier="gpu", machine=there)
    project.edition("spoiled", "01-memory", {}, tier="<b>")
    assert project.run("editions") == 0
    out = capsys.readouterr().out
    lines = {line.split()[0]: line for line in out.splitlines() if line.strip()}
    assert lines["lab-gpu"].split() == [
        "lab-gpu",
        "H100",
        "[80GB]",
        "gpu",
        "2026-01-31",
        *["1", "of", "2", "2", "1", "1"],
    ]
    assert "0 of 2" in lines["reference"]
    assert "not valid, see below" in lines["spoiled"]
    assert "invalid provenance at tier" in out


def test_status_strict_fails_unless_all_are_fresh(project: Any, capsys: pytest.CaptureFixture[str]) -> None:
    project.notebook("01-memory", ["pass"])
    project.notebook("02-precision", ["pass"])
    project.edition("reference", "01-memory", {})
    assert project.run("status") == 0
    out = capsys.readouterr().out
    assert "01-memory     fresh\n" in out
    assert "02-precision  missing: not executed yet\n" in out
    assert project.run("status", "--strict") == 1
    project.edition("reference", "02-precision", {})
    assert project.run("status", "--edition", "reference", "--strict") == 0
    project.edition("reference", "02-precision", {}, source="0" * 64)
    capsys.readouterr()
    assert project.run("status", "--strict") == 1
    assert "02-precision  stale: code cells or an imported module changed" in capsys.readouterr().out


def test_an_edition_with_parameters_of_its_tier_is_fresh(project: Any) -> None:
    project.notebook("01-memory", ["pass"])
    project.tier("gpu", GPU + "parameters: {common: {steps: 9}}")
    project.edition("lab", "01-memory", {}, tier="gpu", parameters={"steps": 9})
    assert project.run("status", "--edition", "lab", "--strict") == 0
    project.edition("lab", "01-memory", {}, tier="gpu", parameters={})
    assert project.run("status", "--edition", "lab", "--strict") == 1
    project.edition("lab", "01-memory", {}, tier="gone", parameters={"steps": 1})
    assert project.run("status", "--edition", "lab", "--strict") == 0, "a tier that is gone gives no parameters"
