"""Runs a launcher on this machine, under a guard that leaves no process behind."""

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from . import exchange, guard, outcome
from .commands import command
from .job import Job, environment, inherited

POLL_S = 0.05
STACKS_S = 2.0
"""What the ranks have for writing their stacks."""
LAUNCHER_LOG = "launcher.log"


def run(job: Job, folder: Path, tick: Callable[[str], None]) -> None:
    """Run `job` to its end; `tick` is called all the while with what is going on.

    Raises `LaunchError` where a rank fails or `job.timeout_s` are over. No process of it is left, however this ends.
    """
    log = folder / LAUNCHER_LOG
    guarded = subprocess.Popen(
        [sys.executable, guard.__file__, str(log), *command(job, folder)],
        stdin=subprocess.PIPE,
        env={**inherited(), **environment(job, folder)},
        start_new_session=True,  # Ctrl-C on the terminal is this process's to handle
    )
    try:
        started = time.monotonic()
        while guarded.poll() is None:
            tick("running")
            if job.timeout_s is not None and time.monotonic() - started > job.timeout_s:
                _ask_for_stacks(guarded.pid, folder)
                raise outcome.timeout(job, folder, f"{job.timeout_s:g} s")
            with contextlib.suppress(subprocess.TimeoutExpired):
                guarded.wait(POLL_S)
    finally:
        _end(guarded)
        if guarded.returncode < 0:
            _end_orphans(folder)
    tick("ended")
    if guarded.returncode:
        raise outcome.failure(
            job, folder, log.read_text(encoding="utf-8", errors="replace"), f"exit code {guarded.returncode}"
        )


def _end(guarded: "subprocess.Popen[bytes]") -> None:
    """Close the guard's stdin and wait for it, even where the user is impatient."""
    assert guarded.stdin is not None
    guarded.stdin.close()
    while guarded.poll() is None:
        with contextlib.suppress(KeyboardInterrupt):
            guarded.wait()


def _end_orphans(folder: Path) -> None:
    """End what a killed guard has left: the processes whose environment names this launch's folder."""
    import psutil

    end = time.monotonic() + guard.GRACE_S
    while time.monotonic() < end:
        left = False
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                launched = process.environ().get(exchange.FOLDER) == str(folder)
                if launched and process.status() != psutil.STATUS_ZOMBIE:
                    process.kill()
                    left = True
        if not left:
            return
        time.sleep(POLL_S)


def _ask_for_stacks(pid: int, folder: Path) -> None:
    """Let each rank that runs below `pid` write its stacks, and wait until all have."""
    import psutil

    below = {process.pid: process for process in psutil.Process(pid).children(recursive=True)}
    starts = exchange.read_starts(folder).values()
    running = {start.rank: below[start.pid] for start in starts if start.pid in below}
    logs = {rank: exchange.log_path(folder, rank) for rank in running}
    before = {rank: logs[rank].stat().st_size for rank in running}
    for rank in running:
        with contextlib.suppress(psutil.Error):
            running[rank].send_signal(signal.SIGUSR1)
    end = time.monotonic() + STACKS_S
    while time.monotonic() < end and any(logs[rank].stat().st_size == before[rank] for rank in running):
        time.sleep(POLL_S)
    time.sleep(POLL_S)
