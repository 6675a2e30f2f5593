"""What a launch shows while it goes on: on a terminal one line that changes, elsewhere a line at each change.

It goes to the process's own stderr, also in a notebook: there a cell's output is compared and published, and what a
machine takes does not belong in it.
"""

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
        self.state, self.started, self.said = "", time.monotonic(), 0.0
        self.follow, self.read = follow, 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._copy_log(whole_lines=False)
        if self.live:
            self._write(CLEAR)

    def line(self, text: str) -> None:
        """Say one line, which stays."""
        self._write(f"{CLEAR if self.live else ''}{self.title}: {text}\n")

    def tick(self, state: str) -> None:
        """Say that `state` goes on, in few words."""
        self._copy_log()
        now = time.monotonic()
        if self.live and (state != self.state or now - self.said > EVERY_S):
            self._write(f"{CLEAR}{self.title}: {state}, {now - self.started:.0f} s")
            self.said = now
        elif not self.live and state != self.state:
            self.line(f"{state}, {now - self.started:.0f} s")
        self.state = state

    def _copy_log(self, *, whole_lines: bool = True) -> None:
        """Copy what rank 0 has written since the last time."""
        path = self.folder and exchange.log_path(self.folder, 0)
        if self.follow is None or path is None or not path.exists():
            return
        with path.open("rb") as log:
            log.seek(self.read)
            new = log.read()
        if whole_lines:
            new = new[: new.rfind(b"\n") + 1]
        if new:
            self.read += len(new)
            if self.live:
                self._write(CLEAR)
            self.follow.write(new.decode(errors="replace"))
            self.follow.flush()

    def _write(self, text: str) -> None:
        if self.stream is not None:
            self.stream.write(text)
            self.stream.flush()


def own_stderr() -> IO[str] | None:
    """This process's stderr; in a kernel, whose own leads into the cell, the one that it was started with."""
    copy = getattr(sys.stderr, "_original_stdstream_copy", None)
    if copy is None:
        return sys.__stderr__
    try:
        return os.fdopen(os.dup(copy), "w")
    except OSError:
        return None
