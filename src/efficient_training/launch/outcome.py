"""What became of a launch: the reports and logs of its ranks, or the first failure among them."""

import re
import signal
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
STACK_START = re.compile(r"^(?:Current thread|Thread) (0x\w+).*\(most recent call first\):\n", re.M)
OUR_FRAME = re.compile(r'File "(<frozen (runpy|importlib)|.*/launch/rank\.py")')


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

    def __init__(self, folder: Path, seconds: float) -> None:
        self.folder, self.seconds = folder, seconds
        self.reports: dict[int, list[dict[str, Any]]] = exchange.read_reports(folder)

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


def check_ranks(job: Job, folder: Path) -> None:
    """Refuse a launch in which fewer ranks ran than were asked for, as accelerate without a config file does it."""
    ran = len(exchange.read_starts(folder))
    if ran != job.ranks_collected:
        raise LaunchError(f"{job.script}: {job.launcher} ran {ran} of {job.ranks} ranks; look at its configuration")


def failure(job: Job, folder: Path, output: str, exit_code: int | str) -> LaunchError:
    """The first failure of a launch that ended with `exit_code`; `output` is what the launcher itself wrote.

    A rank that a signal killed leaves no word, and its peers then fail for want of it: so it comes before them. Of the
    exceptions the earliest counts; each stands on record before the rank's peers can notice.
    """
    errors = exchange.read_errors(folder)
    exits = _exits(folder, output, {error.rank for error in errors})
    killed = [rank for rank, code in exits.items() if code < 0 and -code not in (signal.SIGTERM, signal.SIGABRT)]
    if not killed and errors:
        first = errors[0]
        text = first.traceback or _tail(folder, first.rank)
        return _error(job, first.rank, f"failed: {first.what.splitlines()[0]}", text, first.traceback)
    for rank in [*killed, *exits]:
        return _error(job, rank, _ending(exits[rank]), _tail(folder, rank))
    text = "\n".join(output.strip().splitlines()[-LAST_LINES:])
    return LaunchError(f"{job.script}: {job.launcher} ended with {exit_code}\n{text}".rstrip())


def _exits(folder: Path, output: str, failed: set[int]) -> dict[int, int]:
    """Exit codes by rank (negative: a signal's number), as the launcher names them in its last summary."""
    found = {int(rank): int(code) for rank, code in TORCHRUN_FAILURE.findall(output)}
    codes = DEEPSPEED_FAILURE.findall(output)
    if codes and not found:
        # DeepSpeed names no rank: it is the one that neither left an exception nor came to its end.
        silent = exchange.read_starts(folder).keys() - failed - exchange.read_ends(folder)
        found = {silent.pop(): int(codes[-1])} if len(silent) == 1 else {}
    return found


def _ending(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    cause = " (out of memory is the usual cause)" if -code == signal.SIGKILL else ""
    name = {known.value: known.name for known in signal.Signals}.get(-code, f"signal {-code}")
    return f"was killed by {name}{cause}"


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
    started = exchange.read_starts(folder)
    ranks = range(job.ranks) if job.ranks == job.ranks_collected else sorted(started)
    stacks = {rank: _stacks(folder, rank) for rank in ranks}
    text = "\n".join(f"rank {rank}:\n{stack}" for rank, stack in stacks.items())
    return LaunchError(f"{job.script}: not at its end after {limit}; where each rank was:\n{text}", stacks=stacks)


def _stacks(folder: Path, rank: int) -> str:
    path = exchange.log_path(folder, rank)
    if not path.exists():
        return "  had not started"
    _, *parts = STACK_START.split(path.read_text(encoding="utf-8", errors="replace"))
    # A rank may be asked twice, by SLURM and by torchrun: the last answer of each thread is enough.
    frames = dict(zip(parts[::2], parts[1::2], strict=True))
    return "\n".join(map(_without_start, frames.values())) or "  gave no stack: stopped, or held by the system"


def _without_start(stack: str) -> str:
    """A thread's frames, without those that start the script and those of Python's import."""
    lines = stack.split("\n\n")[0].splitlines()
    kept = [line for line in lines if line.startswith("  File") and not OUR_FRAME.search(line)]
    return "\n".join(["  (most recent call first)", *kept])
