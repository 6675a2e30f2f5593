"""What became of a launch: the reports and logs of its ranks, or the first failure among them."""

import re
import shutil
import signal
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import UserError
from . import exchange
from .job import Job

LAST_LINES = 15
"""Of a log, in the message of a failure that left no traceback."""

TORCHRUN_FAILURE = re.compile(r"^\s*rank\s*: (\d+) \(local_rank: \d+\)\n\s*exitcode\s*: (-?\d+) ", re.M)
DEEPSPEED_FAILURE = re.compile(r"exits with return code = (-?\d+)")
STACK_START = re.compile(r"^(?:Current thread|Thread) 0x", re.M)


class LaunchError(UserError):
    """A launch that failed. The first line says what failed, where; then comes the rank's own traceback, or its log.

    `rank` is the one that failed first (`None` where that is not known, as on a timeout), `traceback` its own,
    `stacks` each rank's at a timeout, by rank.
    """

    def __init__(
        self, message: str, *, rank: int | None = None, traceback: str = "", stacks: Mapping[int, str] | None = None
    ) -> None:
        super().__init__(message)
        self.rank, self.traceback, self.stacks = rank, traceback, dict(stacks or {})


class Launched:
    """A launch that ended well: `seconds` from start to end, `reports` by rank in their order, `folder` of its logs.

    A folder that nobody asked for is removed with this object.
    """

    def __init__(self, folder: Path, seconds: float, *, keep: bool) -> None:
        self.folder, self.seconds = folder, seconds
        self.reports: dict[int, list[dict[str, Any]]] = exchange.read_reports(folder)
        if not keep:
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)

    @property
    def report(self) -> dict[str, Any]:
        """The one report of rank 0; raises `LookupError` where it made none, or several."""
        made = self.reports.get(0, [])
        if len(made) != 1:
            raise LookupError(f"rank 0 made {len(made)} reports, not one; see `reports`")
        return made[0]

    def log(self, rank: int = 0) -> str:
        """What the rank wrote to stdout and stderr, over all attempts; raises `LookupError` on an unknown rank."""
        path = exchange.log_path(self.folder, rank)
        if not path.exists():
            raise LookupError(f"no log of rank {rank}")
        return path.read_text(encoding="utf-8", errors="replace")


def failure(job: Job, folder: Path, output: str, exit_code: int | str) -> LaunchError:
    """The first failure of a launch that ended with `exit_code`; `output` is what the launcher itself wrote.

    A rank that a signal killed leaves no word, and its peers then fail for want of it: so it comes before them. Of the
    exceptions the earliest counts; each stands on record before the rank's peers can notice.
    """
    errors = exchange.read_errors(folder)
    exits = _exits(job, output, {error.rank for error in errors})
    killed = [rank for rank, code in exits.items() if code < 0 and -code not in (signal.SIGTERM, signal.SIGABRT)]
    if not killed and errors:
        first = errors[0]
        text = first.traceback or _tail(folder, first.rank)
        return _error(job, first.rank, f"failed: {first.what.splitlines()[0]}", text, first.traceback)
    for rank in [*killed, *exits]:
        return _error(job, rank, _ending(exits[rank]), _tail(folder, rank))
    text = "\n".join(output.strip().splitlines()[-LAST_LINES:])
    return LaunchError(f"{job.script}: {job.launcher} ended with {exit_code} before any rank failed\n{text}".rstrip())


def _exits(job: Job, output: str, failed: set[int]) -> dict[int, int]:
    """Exit codes by rank (negative: a signal's number), as the launcher names them in its last summary."""
    found = {int(rank): int(code) for rank, code in TORCHRUN_FAILURE.findall(output)}
    codes = DEEPSPEED_FAILURE.findall(output)
    silent = set(range(job.ranks)) - failed
    if not found and codes and len(silent) == 1:
        found[silent.pop()] = int(codes[-1])  # DeepSpeed names no rank: the one that left no exception
    return found


def _ending(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    cause = " (out of memory is the usual cause)" if -code == signal.SIGKILL else ""
    return f"was killed by {signal.Signals(-code).name}{cause}"


def _error(job: Job, rank: int, what: str, text: str, traceback: str = "") -> LaunchError:
    return LaunchError(
        f"{job.script}: rank {rank} of {job.ranks} {what}\n{text}".rstrip(), rank=rank, traceback=traceback
    )


def _tail(folder: Path, rank: int) -> str:
    path = exchange.log_path(folder, rank)
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []
    return "\n".join(lines[-LAST_LINES:])


def timeout(job: Job, folder: Path, limit: str) -> LaunchError:
    """The failure of a launch that did not end; each rank has written its stacks to its log just now."""
    stacks = {rank: _stacks(folder, rank) for rank in range(job.ranks)}
    text = "\n".join(f"rank {rank}:\n{stack}" for rank, stack in stacks.items())
    return LaunchError(f"{job.script}: not at its end after {limit}; where each rank was:\n{text}", stacks=stacks)


def _stacks(folder: Path, rank: int) -> str:
    path = exchange.log_path(folder, rank)
    if not path.exists():
        return "  had not started"
    text = path.read_text(encoding="utf-8", errors="replace")
    starts = [match.start() for match in STACK_START.finditer(text)]
    return text[starts[0] :].rstrip() if starts else "  gave no stack: stopped, or held by the system"
