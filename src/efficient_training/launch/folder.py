"""The folder of a launch's logs and reports: held while the launch goes on, and never one with files of the user's."""

import contextlib
import json
import os
import re
import shutil
import socket
import tempfile
import time
from pathlib import Path

from ..errors import UserError
from . import slurm

MARKER = ".launch"
"""The file by which a launch knows a folder of a launch; locked while one goes on."""
OWN = re.compile(r"rank-\d+\.(log|(start|end|report-[\d-]+|error-\d+)\.(json|\d+\.part))|launcher\.log|job\.sh")
"""The names of what a launch writes, beside `torchrun/`."""
SETTLED_S = 60.0
"""The age from which a marker is surely locked by its launch, where that still goes on."""


class Folder:
    """Where one launch keeps its logs and reports; nothing is made before `make`.

    `path` is the folder asked for, or None for a temporary one. `shared` makes that beside the user's files, on a disk
    that the nodes of a cluster share. `new` says that `path` is a name to start from: the next free one is taken.
    """

    def __init__(self, path: Path | None, *, new: bool = False, shared: bool = False) -> None:
        self.temporary, self.new, self.shared = path is None, new, shared
        self.path = Path() if path is None else path.absolute()
        self._made: list[Path] = []
        self._lock: int | None = None

    def make(self) -> Path:
        """Make the folder, or take over that of an earlier launch without its logs; nobody else can until `release`.

        Raises `UserError` on a folder that is in use, or that has other files.
        """
        try:
            self._make_temporary() if self.temporary else self._make_asked()
            self._hold()
            self._clear()
        except BaseException as error:
            self.discard()
            if isinstance(error, OSError):
                raise UserError(f"{self._name}: {(error.strerror or str(error)).lower()}; take another") from None
            raise
        return self.path

    @property
    def _name(self) -> str:
        return f"launch: the folder {self.path}"

    def _make_temporary(self) -> None:
        parent = Path.cwd() if self.shared else Path(tempfile.gettempdir())
        prefix = f"{'.' if self.shared else ''}efficient-training-launch-"
        _sweep(parent, prefix)
        self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        self._made = [self.path]

    def _make_asked(self) -> None:
        for path in reversed([path for path in self.path.parents if not path.exists()]):
            path.mkdir(exist_ok=True)
            self._made.append(path)
        asked, number = self.path, 1
        while True:
            try:
                self.path.mkdir()
            except FileExistsError:
                if not self.new:
                    return
                number += 1
                self.path = asked.with_name(f"{asked.name}-{number}")
            else:
                self._made.append(self.path)
                return

    def _hold(self) -> None:
        marker = self.path / MARKER
        if not marker.exists():
            if any(self.path.iterdir()):
                raise UserError(f"{self._name} has files that no launch made; take a new one, or an empty one")
            if self.path not in self._made:
                self._made.append(marker)
        lock = os.open(marker, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            with contextlib.suppress(OSError):  # of a disk without locks
                _take(lock)
            number = _read(marker).get("job")
            if number and slurm.goes_on(number):
                raise _InUseError(f"job {number} of SLURM")
        except _InUseError as error:
            os.close(lock)
            raise UserError(f"{self._name} is in use by {error}; take another, or wait for its end") from None
        self._lock = lock
        self.note()

    def note(self, **values: str) -> None:
        """Keep `values` in the marker; `job` is the number of a job that nobody waits for."""
        (self.path / MARKER).write_text(json.dumps({"host": socket.gethostname(), **values}), encoding="utf-8")

    def _clear(self) -> None:
        for path in self.path.iterdir():
            if OWN.fullmatch(path.name):
                path.unlink()
        shutil.rmtree(self.path / "torchrun", ignore_errors=True)

    def release(self) -> None:
        """Let others take over the folder."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def discard(self) -> None:
        """Remove what the launch made, as where it was refused; what it does not hold only where that is empty."""
        if self._lock is not None:
            with contextlib.suppress(OSError):
                self._clear()
                if self.path in self._made:
                    shutil.rmtree(self.path)
                elif self.path / MARKER in self._made:
                    (self.path / MARKER).unlink()
        for path in reversed(self._made):
            with contextlib.suppress(OSError):
                path.rmdir()
        self.release()


class _InUseError(Exception):
    """By whom a folder is held."""


def _take(lock: int) -> None:
    """Lock an open file; raises `_InUseError` where another launch holds it, `OSError` where its disk has no locks."""
    import fcntl  # not on Windows

    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise _InUseError("another launch") from None


def _read(marker: Path) -> dict[str, str]:
    try:
        found = json.loads(marker.read_text(encoding="utf-8"))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _sweep(parent: Path, prefix: str) -> None:
    """Remove the temporary folders of launches from this machine that were killed before they could do it."""
    for folder in parent.glob(f"{prefix}*"):
        with contextlib.suppress(OSError, _InUseError):
            marker = folder / MARKER
            # Locks of another machine may not be seen from here.
            here = _read(marker).get("host") == socket.gethostname()
            if not here or time.time() - marker.stat().st_mtime < SETTLED_S:
                continue
            lock = os.open(marker, os.O_RDWR)
            try:
                _take(lock)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)
