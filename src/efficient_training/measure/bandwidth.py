"""Bandwidths of the links that offloading uses: a disk, and the link between host and GPU; memories are in `rates`.

The best repeat counts, not the median: what another process takes away is no property of the link.
"""

import errno
import mmap
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from ..errors import UserError
from .timing import time_steps

BLOCK = 2**22
"""Bytes of one request to the disk."""

QUEUE_DEPTH = 4
"""Requests to the disk at a time: one alone does not fill an NVMe drive."""

SPARE = 8
"""The probe takes at most one part in so many of the folder's free space."""


@dataclass(frozen=True)
class DiskRates:
    """Bytes per second written (to the medium: `fsync` is timed too) and read; `direct` where no cache was between."""

    write: float
    read: float
    direct: bool
    size: int


@dataclass(frozen=True)
class LinkRates:
    """Bytes per second from host to GPU (`up`), back (`down`), and of both sums where both go at once."""

    up: float
    down: float
    both: float


def disk_rates(folder: str | Path, size: int = 2**28, repeats: int = 2) -> DiskRates:
    """Write a file of about `size` bytes into `folder`, read it again, and leave nothing behind.

    The file has no name from its first byte on, so that it goes with this process, however that ends. Its bytes are
    random, so that no drive can compress them. Where the file system takes `O_DIRECT`, the system's cache is passed by;
    elsewhere the file is synced and dropped from the cache before it is read.

    Raises `UserError` where the folder is missing, cannot be written, or has not eight times `size` free.
    """
    place = Path(folder)
    blocks = max(size // BLOCK, 1)
    try:
        free = shutil.disk_usage(place).free
        if blocks * BLOCK * SPARE > free:
            raise UserError(
                f"disk bandwidth: {place} has {free / 2**20:,.0f} MiB free; a probe of {size / 2**20:,.0f} MiB wants "
                f"{SPARE} times its size. Take a smaller one, or another folder"
            )
        with _nameless(place) as (file, direct), _buffers() as buffers:
            write = min(_timed(lambda: _transfer(file, blocks, buffers, os.pwritev)) for _ in range(repeats))
            _drop(file)
            read = min(_timed(lambda: _transfer(file, blocks, buffers, os.preadv)) for _ in range(repeats))
    except OSError as error:
        raise UserError(f"disk bandwidth: {place}: {error.strerror}; choose a folder that can be written") from None
    return DiskRates(blocks * BLOCK / write, blocks * BLOCK / read, direct, blocks * BLOCK)


def _timed(call: Callable[[], None]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


@contextmanager
def _nameless(folder: Path) -> Iterator[tuple[int, bool]]:
    """An open file without a name, and whether it passes the cache by."""
    file, name = tempfile.mkstemp(prefix=".bandwidth-", dir=folder)
    direct = False
    try:
        try:
            other = os.open(name, os.O_RDWR | getattr(os, "O_DIRECT", 0))
            os.close(file)
            file, direct = other, hasattr(os, "O_DIRECT")
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
                raise
        Path(name).unlink()
        yield file, direct
    finally:
        Path(name).unlink(missing_ok=True)
        os.close(file)


@contextmanager
def _buffers() -> Iterator[list[mmap.mmap]]:
    """Whole pages, as O_DIRECT wants them, of random bytes."""
    made = [mmap.mmap(-1, BLOCK) for _ in range(QUEUE_DEPTH)]
    try:
        for buffer in made:
            buffer[:] = os.urandom(BLOCK)
        yield made
    finally:
        for buffer in made:
            buffer.close()


def _transfer(
    file: int, blocks: int, buffers: list[mmap.mmap], call: Callable[[int, list[mmap.mmap], int], int]
) -> None:
    def part(worker: int) -> None:
        for number in range(worker, blocks, QUEUE_DEPTH):
            moved = call(file, [buffers[worker]], number * BLOCK)
            if moved != BLOCK:  # the last bytes of a disk that is running full
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with ThreadPoolExecutor(QUEUE_DEPTH) as pool:
        list(pool.map(part, range(QUEUE_DEPTH)))
    if call is os.pwritev:
        os.fsync(file)


def _drop(file: int) -> None:
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)


def link_rates(device: torch.device | str, *, pinned: bool, size: int = 2**28, repeats: int = 5) -> LinkRates:
    """Bandwidth between the host's memory, `pinned` or pageable, and a CUDA device, timed by its own events.

    Raises `UserError` where `device` is no CUDA device.
    """
    if torch.device(device).type != "cuda":
        raise UserError(f"bandwidth between host and GPU: needs a CUDA device, got {device}")
    host = [torch.ones(size, dtype=torch.uint8, pin_memory=pinned) for _ in range(2)]
    there = [torch.ones(size, dtype=torch.uint8, device=device) for _ in range(2)]
    second = torch.cuda.Stream(device)

    def up(_: object) -> None:
        there[0].copy_(host[0], non_blocking=True)

    def down(_: object) -> None:
        host[1].copy_(there[1], non_blocking=True)

    def both(timer: object) -> None:
        second.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(second):
            down(timer)
        up(timer)
        torch.cuda.current_stream(device).wait_stream(second)

    taken = {
        call: min(time_steps(call, device, steps=repeats, warmup=2)["step"].samples_s) for call in (up, down, both)
    }
    return LinkRates(size / taken[up], size / taken[down], 2 * size / taken[both])
