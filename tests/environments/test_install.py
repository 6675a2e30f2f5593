"""environments/install.py, which any Python may be asked to run: what it refuses, and what it takes for whole."""

import importlib.util
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "environments" / "install.py"


@pytest.fixture
def install() -> ModuleType:
    spec = importlib.util.spec_from_file_location("install", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("version", ["(3, 6, 15)", "(3, 10, 13)", "(3, 14, 0)"])
def test_another_python_is_refused_in_one_line_before_anything_it_could_not_run(version: str) -> None:
    code = f"import runpy, sys; sys.version_info = {version}; runpy.run_path({str(SCRIPT)!r})"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 2
    assert run.stderr.startswith("error: Python 3.")
    assert "name one from 3.11 to 3.13" in run.stderr
    assert (run.stdout, run.stderr.count("\n")) == ("", 1)


def test_an_environment_cut_short_while_it_was_made_is_no_environment(install: ModuleType, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True)
    assert not install.usable(tmp_path / "venv" / "bin" / "python")
    assert not install.usable(tmp_path / "none" / "bin" / "python")
    (tmp_path / "python").symlink_to(tmp_path / "gone")
    assert not install.usable(tmp_path / "python")


def test_a_package_cut_short_is_installed_again(install: ModuleType, tmp_path: Path) -> None:
    packages = tmp_path / "lib" / "python3.11" / "site-packages"
    for name, files in {"whole": ("METADATA", "RECORD"), "cut": ("METADATA",)}.items():
        folder = packages / f"{name}-1.0.dist-info"
        folder.mkdir(parents=True)
        for file in files:
            (folder / file).write_text("")
    install.forget_unfinished(tmp_path)
    assert [path.name for path in packages.iterdir()] == ["whole-1.0.dist-info"]


def test_a_folder_that_cannot_be_written_is_one_line(
    install: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "environments" / "book").mkdir(parents=True)
    (tmp_path / "environments" / "book" / "requirements.txt").write_text("")
    (tmp_path / ".venv").write_text("a file in the folder's place")
    monkeypatch.setattr(install, "ROOT", tmp_path)
    monkeypatch.setattr(sys, "argv", ["install.py", "book"])
    assert install.main() == 2
    out = capsys.readouterr().out
    assert out.startswith("environment .venv/book: ")
    assert out.count("\n") == 1


def test_a_second_installation_waits_for_the_first(
    install: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "book.log"
    with log.open("a") as mine:
        install.wait_for_others(mine, "book")
        assert capsys.readouterr().out == ""
        threading.Timer(0.2, mine.close).start()
        with log.open("a") as other:
            install.wait_for_others(other, "book")
    assert "waiting for another installation" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "command", "settings"),
    [
        ("deepspeed==1.0", ["deepspeed==1.0"], {}),
        ("A_B=cpu x==1.0 --no-deps", ["--no-deps", "x==1.0"], {"A_B": "cpu"}),
        ("x>=1 ; optional: no x", ["x>=1"], {}),
    ],
)
def test_a_line_of_post_txt_is_a_requirement_with_options_and_settings(
    line: str, command: list[str], settings: dict[str, str], install: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[list[str], dict[str, str]]] = []
    monkeypatch.setattr(install, "run", lambda c, out, timeout, settings: asked.append((c[4:], settings)))
    install.install_last(Path("python"), line, sys.stdout)
    assert asked == [(command, settings)]


def test_what_is_optional_is_left_out_in_one_line(install: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    with Path("/dev/null").open("w") as out:
        install.install_last(Path("/bin/false"), "x>=1 ; optional: pages lack y", out)
        assert capsys.readouterr().out == "  x>=1 could not be installed here; pages lack y\n"
        with pytest.raises(subprocess.CalledProcessError):
            install.install_last(Path("/bin/false"), "x>=1", out)
