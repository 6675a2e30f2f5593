import subprocess
import sys
from pathlib import Path

import pytest

from efficient_training import native

FAILING = "#!/bin/sh\nexit 1\n"


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
    pytest.importorskip("deepspeed")
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
    pytest.importorskip("deepspeed")
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
    pytest.importorskip("deepspeed")
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
