"""What a launch copies of rank 0's log as it comes."""

import io
import os
import sys
from pathlib import Path

import pytest

from efficient_training.launch.job import Job
from efficient_training.launch.progress import Progress


class Shown(Progress):
    """Progress whose rank 0 writes what the test says."""

    def __init__(self, folder: Path, follow: io.TextIOBase) -> None:
        super().__init__(Job(Path("bar.py")), True, follow)  # type: ignore[arg-type]
        self.folder = folder

    def log(self, data: bytes) -> None:
        assert self.folder is not None
        with (self.folder / "rank-0.log").open("ab") as log:
            log.write(data)
        self.tick("running")


@pytest.fixture(autouse=True)
def errors(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    made = io.StringIO()
    monkeypatch.setattr(sys, "__stderr__", made)
    return made


def test_a_progress_bar_is_shown_as_it_grows(tmp_path: Path) -> None:
    out = io.StringIO()
    with Shown(tmp_path, out) as shown:
        shown.tick("running")
        shown.log(b"\r 10%")
        assert out.getvalue() == "\r 10%"
        shown.log("\r 20% █".encode()[:-1])  # within a character
        assert out.getvalue() == "\r 10%\r 20% "
        shown.log("█".encode()[-1:])
    assert out.getvalue() == "\r 10%\r 20% █\n"  # the last line is ended for what comes after


def test_a_bar_and_the_status_line_do_not_erase_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    terminal.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "__stderr__", terminal)
    with Shown(tmp_path, terminal) as shown:
        shown.log(b"\r 10%")
        shown.said = 0.0
        shown.log(b"\r 20%")
        assert terminal.getvalue().endswith("\r 10%\r 20%")
        shown.log(b"\n")
        assert terminal.getvalue().endswith("\r 20%\n\r\x1b[Kbar.py on 1 rank by torchrun: running, 0 s")


def test_a_reader_that_goes_away_does_not_end_the_run(tmp_path: Path, errors: io.StringIO) -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as out:
        with Shown(tmp_path, out) as shown:
            shown.log(b"one\n")
            shown.log(b"two\n")
        out.write("what comes after is not in the way either\n")
    said = [line for line in errors.getvalue().splitlines() if "closed" in line]
    assert said == [
        f"bar.py on 1 rank by torchrun: output was closed; the ranks go on, and their logs are in {tmp_path}"
    ]


def test_nobody_need_hear_the_status_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as stream:
        monkeypatch.setattr(sys, "__stderr__", stream)
        with Shown(tmp_path, io.StringIO()) as shown:
            shown.log(b"one\n")
