"""DeepSpeed's swapping to disk: what it will write where, and a watch over what it does write.

DeepSpeed 0.19.8 does not look at the results of its writes (`_do_io_complete` in its `deepspeed_aio_common.cpp` counts
completed requests and drops their codes), so a full disk goes unnoticed until a read ends the process by an assertion.
`prepare_folder` asks before anything starts, and `watch` looks at each file that was written.
"""

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..errors import UserError

SMALLEST = 2**20
"""Bytes below which DeepSpeed swaps nothing (`MIN_AIO_BYTES`), and at least one block of `aio.block_size`."""

ALIGNMENT = 1024
"""Bytes to a multiple of which a swapped tensor is padded (`AIO_ALIGNED_BYTES`)."""

TAIL = 512
"""Bytes at the end of each write that are read back."""

BUFFERS = 4
"""Buffers on the host, of the size of the largest sub-group in fp32, through which the state goes (`buffer_count`)."""


@dataclass(frozen=True)
class SwapPlan:
    """Bytes of one rank: `disk` by component, `buffers` on the host, and what is too small and `stays` in memory."""

    disk: dict[str, int]
    buffers: int
    stays: dict[str, int]

    @property
    def disk_bytes(self) -> int:
        """Bytes of all files."""
        return sum(self.disk.values())


def swap_plan(
    sizes: Sequence[int],
    sub_group_size: int,
    *,
    parameters: bool = False,
    buffers: int = BUFFERS,
    block: int = SMALLEST,
) -> SwapPlan:
    """What stage 3 will swap of tensors of `sizes` elements (a rank's parts), with bf16 weights and fp32 states.

    Master weights and moments go by sub-groups of at least `sub_group_size` elements; gradients (fp32) and, with
    `parameters`, weights (bf16) go tensor by tensor. Only what has `block` bytes, and a MiB, is swapped at all.
    """
    least = max(SMALLEST, block)
    disk = dict.fromkeys(("weights", "gradients", "optimizer state", "master weights"), 0)
    stays = dict(disk)

    def put(component: str, size: int, *, swapped: bool) -> None:
        (disk if swapped else stays)[component] += aligned(size) if swapped else size

    groups = sub_groups(sizes, sub_group_size)
    for group in groups:
        swapped = 4 * sum(group) >= least
        for _ in range(2):  # two moments, a file each
            put("optimizer state", 4 * sum(group), swapped=swapped)
        put("master weights", 4 * sum(group), swapped=swapped)
        for size in group:
            # a gradient that is no multiple of the alignment leaves its end in memory
            whole = 4 * size // ALIGNMENT * ALIGNMENT if swapped and 4 * size >= least else 0
            put("gradients", whole, swapped=True)
            put("gradients", 4 * size - whole, swapped=False)
    for size in sizes:
        put("weights", 2 * size, swapped=parameters and 2 * size >= least)
    largest = max(aligned(4 * sum(group)) for group in groups)
    return SwapPlan(disk, buffers * largest, stays)


def sub_groups(sizes: Sequence[int], sub_group_size: int) -> list[list[int]]:
    """The tensors as stage 3 takes them together: in order, until a group has `sub_group_size` elements or more."""
    groups: list[list[int]] = [[]]
    for size in sizes:
        if sum(groups[-1]) >= sub_group_size:
            groups.append([])
        groups[-1].append(size)
    return groups


def largest_parameter(model: nn.Module) -> int:
    """Elements of the largest parameter: the least `buffer_size` with which DeepSpeed can swap weights."""
    return max(getattr(parameter, "ds_numel", parameter.numel()) for parameter in model.parameters())


def aligned(size: int) -> int:
    """`size` bytes with the padding of a swapped tensor."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def prepare_folder(folder: str | Path, needed: int) -> Path:
    """Make `folder` for swap files of `needed` bytes, and check that they will fit; raises `UserError` if not."""
    place = Path(folder)
    try:
        place.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=place):
            pass
        free = shutil.disk_usage(place).free
    except OSError as error:
        raise UserError(
            f"offload to disk: {place}: {(error.strerror or str(error)).lower()}; choose a folder that can be written"
        ) from None
    if free < needed:
        raise UserError(
            f"offload to disk: {place} has {free / 2**20:,.0f} MiB free and needs {needed / 2**20:,.0f} MiB; "
            "make room, or choose another folder"
        )
    return place


def swapped_bytes(folder: str | Path) -> int:
    """Bytes of the swap files in `folder` and below."""
    return sum(path.stat().st_size for path in Path(folder).rglob("*.swp"))


@dataclass
class Swapped:
    """What went through DeepSpeed's handles since the watch began, or since `reset`: bytes read and written."""

    read: int = 0
    written: int = 0

    def reset(self) -> None:
        """Begin to count again."""
        self.read = self.written = 0


@contextmanager
def watch() -> Iterator[Swapped]:
    """Count what DeepSpeed swaps inside the block, and raise `UserError` where a file did not take what was written.

    Needs the `async_io` extension (see `efficient_training.native`).
    """
    from deepspeed.ops.op_builder import AsyncIOBuilder

    extension = AsyncIOBuilder().load(verbose=False)
    counts, original = Swapped(), extension.aio_handle
    extension.aio_handle = lambda *given, **named: _Watched(original(*given, **named), counts)
    try:
        yield counts
    finally:
        extension.aio_handle = original


class _Watched:
    """A handle that passes everything on, counts, and reads the end of each write back once it is said to be done."""

    def __init__(self, handle: Any, counts: Swapped) -> None:
        self._handle, self._counts = handle, counts
        self._pending: list[tuple[str, int, Any]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._handle, name)

    def async_pread(self, buffer: Any, path: str, offset: int) -> int:
        self._counts.read += buffer.nbytes
        done: int = self._handle.async_pread(buffer, path, offset)
        return done

    def async_pwrite(self, buffer: Any, path: str, offset: int) -> int:
        self._counts.written += buffer.nbytes
        self._pending.append((path, offset + buffer.nbytes, buffer))
        done: int = self._handle.async_pwrite(buffer, path, offset)
        return done

    def wait(self) -> int:
        done: int = self._handle.wait()
        pending, self._pending = self._pending, []
        for path, end, buffer in pending:
            written = buffer.view(-1).view(torch.uint8)[-TAIL:]
            with Path(path).open("rb") as file:
                file.seek(end - len(written))
                found = file.read(len(written))
            if found != bytes(written.tolist()):
                raise UserError(
                    f"offload to disk: {path} did not take all of {end / 2**20:,.1f} MiB: the disk is full, or a limit "
                    "on file sizes was reached; make room, and go on from the last checkpoint"
                )
        return done
