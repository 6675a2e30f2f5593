"""What a launch shows while it goes on: on a terminal one line that changes, elsewhere a line at each change.

It goes to the process's own stderr, also in a notebook: there a cell's output is compared and published, and what a
machine takes does not belong in it.
"""

import codecs
import contextlib
import os
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from . import exchange
from .job import Job

EVERY_S = 0.5
CLEAR = "\r\x1b[K"
"""To the start of the terminal's line, which is emptied."""


class Progress:
    """The voice of one launch; a context manager. Silent where not `shown`."""

    folder: Path | None = None
    """Where rank 0's log is, once that is known."""

    def __init__(self, job: Job, shown: bool, follow: IO[str] | None = None) -> None:
        ranks = f"{job.ranks} rank" + ("s" if job.ranks > 1 else "")
        self.title = f"{job.script.name} on {ranks} by {job.launcher}"
        self.stream = own_stderr() if shown else None
        self.live = self.stream is not None and self.stream.isatty()
        self.one_terminal = self.live and follow is not None and follow.isatty()
        self.state, self.started, self.said = "", time.monotonic(), 0.0
        self.follow, self.read = follow, 0
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.unfinished = False
        """Whether what was copied last ends within a line, as a progress bar does."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._copy_log(last=True)
        self._finish_line()
        if self.live:
            self._write(CLEAR)

    def line(self, text: str) -> None:
        """Say one line, which stays."""
        self._finish_line()
        self._write(f"{CLEAR if self.live else ''}{self.title}: {text}\n")

    def tick(self, state: str) -> None:
        """Say that `state` goes on, in few words."""
        self._copy_log()
        now = time.monotonic()
        hidden = self.one_terminal and self.unfinished
        if self.live and not hidden and (state != self.state or now - self.said > EVERY_S):
            self._write(f"{CLEAR}{self.title}: {state}, {now - self.started:.0f} s")
            self.said = now
        elif not self.live and state != self.state:
            self.line(f"{state}, {now - self.started:.0f} s")
        self.state = state

    def _copy_log(self, *, last: bool = False) -> None:
        """Copy what rank 0 has written since the last time."""
        path = self.folder and exchange.log_path(self.folder, 0)
        if self.follow is None or path is None or not path.exists():
            return
        with path.open("rb") as log:
            log.seek(self.read)
            new = log.read()
        self.read += len(new)
        self._copy(self.decoder.decode(new, final=last))

    def _finish_line(self) -> None:
        if self.unfinished:
            self._copy("\n")

    def _copy(self, text: str) -> None:
        """A reader that has gone, or a disk that is full, does not end the run."""
        if self.follow is None or not text:
            return
        if self.one_terminal and not self.unfinished:
            self._write(CLEAR)
        self.unfinished = not text.endswith("\n")
        try:
            self.follow.write(text)
            self.follow.flush()
        except OSError as error:
            mute(self.follow)
            self.follow, self.unfinished = None, False
            closed = "was closed" if isinstance(error, BrokenPipeError) else f"fails ({error.strerror or error})"
            self.line(f"output {closed}; the ranks go on, and their logs are in {self.folder}")

    def _write(self, text: str) -> None:
        if self.stream is None:
            return
        try:
            self.stream.write(text)
            self.stream.flush()
        except OSError:
            mute(self.stream)
            self.stream = None


def mute(stream: IO[str]) -> None:
    """Let what is still written to a stream that cannot be written to vanish, at the interpreter's end too."""
    with contextlib.suppress(OSError), Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), stream.fileno())


def own_stderr() -> IO[str] | None:
    """This process's stderr; in a kernel, whose own leads into the cell, the one that it was started with."""
    copy = getattr(sys.stderr, "_original_stdstream_copy", None)
    if copy is None:
        return sys.__stderr__
    try:
        return os.fdopen(os.dup(copy), "w", errors="backslashreplace")
    except OSError:
        return None
