"""However a launch ends, no process of it is left."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

PLAIN = Path(__file__).parent / "scripts" / "plain.py"
CALLER = (
    "import sys; from efficient_training.launch import launch\nlaunch(sys.argv[1], 'hang', ranks=2, folder=sys.argv[2])"
)
WAIT_S = 60.0


def alive(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def the(below: list[psutil.Process], module: str) -> psutil.Process:
    """The process that runs this module: the guard's command line, further on, holds the others'."""
    return next(
        process for process in below if alive(process) and any(part.endswith(module) for part in process.cmdline()[1:4])
    )


def wait_until(true: Callable[[], object]) -> None:
    limit = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < limit, "waited in vain"
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("victim", "end"),
    [
        ("caller", signal.SIGINT),
        ("caller", signal.SIGTERM),
        ("caller", signal.SIGKILL),
        ("guard.py", signal.SIGKILL),
        ("torch.distributed.run", signal.SIGKILL),
        ("efficient_training.launch.rank", signal.SIGSTOP),
    ],
)
def test_no_process_is_left(victim: str, end: signal.Signals, tmp_path: Path) -> None:
    command = [sys.executable, "-c", CALLER, str(PLAIN), str(tmp_path)]
    caller = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    log = tmp_path / "rank-1.log"
    try:
        wait_until(lambda: log.exists() and "rank 1" in log.read_text())
        below = psutil.Process(caller.pid).children(recursive=True)
        assert the(below, "efficient_training.launch.rank")
        if victim != "caller":
            the(below, victim).send_signal(end)
        if victim == "caller" or end == signal.SIGSTOP:
            caller.send_signal(signal.SIGKILL if end == signal.SIGSTOP else end)
        _, errors = caller.communicate(timeout=WAIT_S)
        wait_until(lambda: not any(map(alive, below)))
    finally:
        caller.kill()
        caller.wait()
    assert caller.returncode != 0
    if victim == "caller":
        assert ("KeyboardInterrupt" in errors) == (end == signal.SIGINT)
    elif end == signal.SIGKILL:
        assert "LaunchError: " in errors
