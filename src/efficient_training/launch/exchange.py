"""What the ranks and whoever launched them tell each other: files in one folder, each written in one step.

Needs the standard library alone, since each rank imports it before its script does anything.
"""

import json
import os
import socket
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

FOLDER = "EFFICIENT_TRAINING_LAUNCH"
"""The environment variable that names the folder; unset where a script was started by hand."""
BACKEND = "EFFICIENT_TRAINING_BACKEND"
"""The environment variable that names the process group's backend; unset where the device decides."""


def folder() -> Path | None:
    """The folder that collects, or `None` where nobody does."""
    name = os.environ.get(FOLDER)
    return Path(name) if name else None


def rank() -> int:
    """This process's rank among all, 0 where no launcher started it."""
    return int(os.environ.get("RANK", "0"))


def attempt() -> int:
    """How often the ranks were started before, by torch elastic and by SLURM's requeue; it grows with each."""
    restarts = int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0"))
    again = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    return int(os.environ.get("SLURM_RESTART_COUNT", "0")) * (restarts + 1) + again


def log_path(folder: Path, rank: int) -> Path:
    """What a rank wrote to stdout and stderr, in the order of its writes, over all attempts."""
    return folder / f"rank-{rank}.log"


def write(path: Path, data: Any) -> None:
    """Write JSON in one step: whoever reads finds the whole of it, or no file."""
    part = path.with_suffix(f".{os.getpid()}.part")
    part.write_text(json.dumps(data), encoding="utf-8")
    part.replace(path)


def write_report(folder: Path, number: int, values: dict[str, Any]) -> None:
    """Keep the report with this number of this rank and attempt."""
    write(folder / f"rank-{rank()}.report-{attempt():04d}-{number:06d}.json", values)


def read_reports(folder: Path) -> dict[int, list[dict[str, Any]]]:
    """All reports by rank, in the order in which they were made, over all attempts."""
    found: dict[int, list[dict[str, Any]]] = {}
    for path in sorted(folder.glob("rank-*.report-*.json")):
        number = int(path.name.removeprefix("rank-").partition(".")[0])
        found.setdefault(number, []).append(json.loads(path.read_text(encoding="utf-8")))
    return dict(sorted(found.items()))


def write_start(folder: Path) -> None:
    """Note the process in which this rank runs."""
    start = {"rank": rank(), "attempt": attempt(), "pid": os.getpid(), "host": socket.gethostname()}
    write(folder / f"rank-{rank()}.start.json", start)


@dataclass(frozen=True)
class Start:
    """The latest start of a rank: the process, as its own machine numbers it."""

    rank: int
    attempt: int
    pid: int
    host: str


def read_starts(folder: Path) -> dict[int, Start]:
    """The ranks that have started, by rank."""
    found = [Start(**json.loads(path.read_text("utf-8"))) for path in folder.glob("rank-*.start.json")]
    return {start.rank: start for start in found}


def write_end() -> None:
    """Note that this rank came to its end without a failure, where somebody collects."""
    place = folder()
    if place is not None:
        write(place / f"rank-{rank()}.end.json", {"rank": rank(), "attempt": attempt()})


def read_ends(folder: Path) -> set[int]:
    """The ranks that came to their end in the last attempt."""
    found = [json.loads(path.read_text("utf-8")) for path in folder.glob("rank-*.end.json")]
    return {end["rank"] for end in found if end["attempt"] == _last_attempt(folder)}


def _last_attempt(folder: Path) -> int:
    return max((start.attempt for start in read_starts(folder).values()), default=0)


@dataclass(frozen=True)
class RankError:
    """An exception that ended a rank. `time` is in seconds since the epoch."""

    rank: int
    attempt: int
    time: float
    what: str
    traceback: str


def record_error(error: BaseException, trace: TracebackType | None) -> None:
    """Keep what ends this rank where the launcher, and torch elastic in its own summary, find it.

    To be called before the process group is left: so the first failure is on record before its peers notice.
    """
    if isinstance(error, SystemExit):
        what, text = f"exit code {error.code}", ""
    else:
        # Of a syntax error the first line would be where, not what.
        syntax = f"{type(error).__name__}: {error}" if isinstance(error, SyntaxError) else ""
        what = syntax or "".join(traceback.format_exception_only(error)).strip()
        text = "".join(traceback.format_exception(type(error), error, trace))
    place = folder()
    if place is not None:
        path = place / f"rank-{rank()}.error-{attempt():04d}.json"
        if path.exists():
            return
        write(path, {"rank": rank(), "attempt": attempt(), "time": time.time(), "what": what, "traceback": text})
    if os.environ.get("TORCHELASTIC_ERROR_FILE"):
        from torch.distributed.elastic.multiprocessing.errors import get_error_handler

        get_error_handler().record_exception(error)


def read_errors(folder: Path) -> list[RankError]:
    """The exceptions of the last attempt, the earliest first."""
    found = [RankError(**json.loads(path.read_text("utf-8"))) for path in folder.glob("rank-*.error-*.json")]
    last = [error for error in found if error.attempt == _last_attempt(folder)]
    return sorted(last, key=lambda error: error.time)
