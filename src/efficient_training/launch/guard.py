"""A small process between a caller and what it starts: however the caller ends, nothing that it started is left.

`python guard.py LOG command...` runs the command with its output in LOG, and ends with its exit code. It ends the
command and all its descendants when its stdin is closed, which the system does for a caller that is killed; and it ends
what the command leaves behind. `python guard.py --otherwise command...` runs the command only when its stdin is closed
before the caller has written to it. Needs the standard library and psutil, and no package around it.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

GRACE_S = 2.0
"""Between asking the processes to end and ending them."""
POLL_S = 0.05
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
"""Of prctl(2)."""


def die_with_parent(signal_number: int) -> None:
    """Let the system send this process a signal when its parent ends; on Linux, elsewhere nothing."""
    _prctl(PR_SET_PDEATHSIG, signal_number)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def run(log: Path, command: list[str]) -> int:
    """Run `command` until it ends or stdin is closed; returns its exit code, negative where a signal ended it."""
    asked: list[int] = []
    # No exception: it could break off the ending of the descendants.
    signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
    die_with_parent(signal.SIGTERM)
    # What loses its parent becomes a child of this process, and so stays within reach.
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    with log.open("ab") as output:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            preexec_fn=lambda: die_with_parent(signal.SIGTERM),
        )
    try:
        while child.poll() is None and not asked and not select.select([sys.stdin], [], [], POLL_S)[0]:
            pass
        return -signal.SIGTERM if child.returncode is None else child.returncode
    finally:
        _end_descendants(child)


def _end_descendants(child: "subprocess.Popen[bytes]") -> None:
    import psutil

    me = psutil.Process()
    started = time.monotonic()
    known: set[psutil.Process] = set()
    while True:
        child.poll()
        _reap()
        new = set(me.children(recursive=True)) - known
        known = {process for process in known | new if process.is_running()}
        if not known:
            return
        late = time.monotonic() - started > GRACE_S
        for process in known if late else new:
            with contextlib.suppress(psutil.Error):
                process.kill() if late else process.terminate()
        time.sleep(POLL_S)


def _reap() -> None:
    """Collect the ended children, adopted ones too."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def otherwise(command: list[str]) -> int:
    """Wait for a byte on stdin; run `command` where it is closed without one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if os.read(sys.stdin.fileno(), 1):
        return 0
    return subprocess.call(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    if sys.argv[1] == "--otherwise":
        sys.exit(otherwise(sys.argv[2:]))
    code = run(Path(sys.argv[1]), sys.argv[2:])
    sys.exit(code if code >= 0 else 128 - code)
