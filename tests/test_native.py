import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from efficient_training import native

FAILING = "#!/bin/sh\nexit 1\n"

pytestmark = pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="needs DeepSpeed")


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment in which nothing is built."""
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    return native.folder()


def test_the_folder_is_of_this_environment_pytorch_and_processor(empty: Path, tmp_path: Path) -> None:
    import torch

    assert empty.parent == tmp_path / "torch-extensions"
    assert empty.name.startswith(f"{torch.__version__}-")
    assert native.folder() == empty


@pytest.mark.usefixtures("empty")
def test_what_is_missing_is_told_in_a_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    compiler = tmp_path / "c++"
    compiler.write_text(FAILING)
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    assert native.missing("async_io") == "libaio (its headers: libaio-dev, libaio-devel)"
    assert native.build("async_io") is False
    assert capsys.readouterr().out == "async_io: not built here: needs libaio (its headers: libaio-dev, libaio-devel)\n"
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    assert native.missing("cpu_adam") == "a C++ compiler"


def test_a_build_that_fails_is_told_and_goes_on_later(
    empty: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lock = empty / "cpu_adam" / "lock"
    lock.parent.mkdir(parents=True)
    lock.touch()  # of a build that was killed
    monkeypatch.setitem(native.EXTENSIONS, "cpu_adam", "NoSuchBuilder")
    monkeypatch.setattr(native, "_obstacle", lambda name: None)
    assert native.build("cpu_adam") is False
    assert "cpu_adam: could not be built: ImportError: cannot import name 'NoSuchBuilder'" in capsys.readouterr().out
    assert not lock.exists()
    assert not native.built("cpu_adam")


def test_what_is_built_is_left_alone(empty: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for part in ("pin_memory", "async_io"):
        (empty / part).mkdir(parents=True)
        (empty / part / f"{part}.so").touch()
    assert not native.built("async_io")  # whole only with its stamp
    native._stamp(empty, "async_io").touch()
    assert native.build("async_io") is True
    assert capsys.readouterr().out == "async_io: there already\n"
    assert native.missing("async_io") is None


def test_help_names_the_extensions() -> None:
    made = subprocess.run([sys.executable, "-m", "efficient_training.native", "--help"], capture_output=True, text=True)
    assert made.returncode == 0
    assert "deepspeed_shm_comm" in made.stdout
    assert "async_io" in made.stdout


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGINT])
def test_an_interrupted_build_leaves_no_compiler(tmp_path: Path, ending: signal.Signals) -> None:
    compiler, started = tmp_path / "slow-compiler", tmp_path / "started"
    compiler.write_text(f'#!/bin/sh\ncase $1 in -MMD) echo $$ >> {started}; exec sleep 600;; esac\nexec c++ "$@"\n')
    compiler.chmod(0o755)
    code = (
        f"import sys; sys.prefix, sys.argv = {str(tmp_path)!r}, ['native', 'cpu_adam']\n"
        "from efficient_training import native; sys.exit(native.main())"
    )
    environment = {**os.environ, "CXX": str(compiler), "TORCH_EXTENSIONS_DIR": str(tmp_path / "built")}
    building = subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.DEVNULL)
    try:
        wait_for(lambda: started.exists() and started.read_text())
        building.send_signal(ending)
        assert building.wait(60) == 128 + ending
    finally:
        building.kill()
    pids = [int(line) for line in started.read_text().split()]
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))


def wait_for(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)
