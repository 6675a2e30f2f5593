"""What CUDA's allocator writes down about itself, and who held memory at the instant at which a request failed.

PyTorch can record each allocation and each free with the Python stack that asked for it (`torch.cuda.memory`). The
file that it writes opens in the viewer at pytorch.org/memory_viz; `failure_in` reads it without one.
"""

import pickle
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

import torch

from ..errors import UserError

ENTRIES = 100_000
"""Events that are kept; older ones make room."""

NO_FRAME = "no Python frame"
"""Where a block comes from that C++ code asked for, as most of backward does."""


@dataclass(frozen=True)
class Holder:
    """Blocks alive that one line of Python asked for: `place` is "file:line function", `bytes` their sum."""

    place: str
    bytes: int
    blocks: int


@dataclass(frozen=True)
class Failure:
    """A request that failed: bytes asked for, bytes in all recorded blocks then, and who held them, the largest first.

    Blocks from before the recording, or whose event has made room for a later one, are not among them.
    """

    requested: int
    allocated: int
    holders: tuple[Holder, ...]


@contextmanager
def recorded(path: Path) -> Iterator[None]:
    """Record the allocator's history inside the block, and write it to `path` at its end, also when that is an error.

    Raises `UserError` without CUDA, whose allocator alone keeps one.
    """
    if not torch.cuda.is_available():
        raise UserError("snapshot: the allocator's history needs a CUDA device; leave history out")
    torch.cuda.memory._record_memory_history(max_entries=ENTRIES, stacks="python")
    try:
        yield
    finally:
        torch.cuda.memory._dump_snapshot(str(path))
        torch.cuda.memory._record_memory_history(enabled=None)


def read_snapshot(path: Path) -> dict[str, Any]:
    """The snapshot in a file that `recorded` has written here; a pickle, so never one from elsewhere."""
    with path.open("rb") as file:
        snapshot: dict[str, Any] = pickle.load(file)
    return snapshot


def failure_in(snapshot: Mapping[str, Any], largest: int = 5) -> Failure | None:
    """The last failed request in a snapshot, and the `largest` holders at that instant; `None` where none failed.

    The events are gone through in order, as the segments show the end of the recording, when an error on its way up
    has already let go of some tensors. Their layout is that of `torch.cuda.memory._snapshot`.
    """
    failure = None
    for events in snapshot["device_traces"]:
        alive: dict[int, tuple[int, str]] = {}
        for event in events:
            if event["action"] == "alloc":
                alive[event["addr"]] = (event["size"], _place(event["frames"]))
            elif event["action"] == "free_completed":
                alive.pop(event["addr"], None)
            elif event["action"] == "oom":
                failure = _failure(event["size"], alive, largest)
    return failure


def _failure(requested: int, alive: Mapping[int, tuple[int, str]], largest: int) -> Failure:
    sizes: Counter[str] = Counter()
    blocks: Counter[str] = Counter()
    for size, place in alive.values():
        sizes[place] += size
        blocks[place] += 1
    holders = tuple(Holder(place, size, blocks[place]) for place, size in sizes.most_common(largest))
    return Failure(requested, sum(sizes.values()), holders)


def _place(frames: list[Mapping[str, Any]]) -> str:
    """The innermost frame that is not in torch itself, or else the innermost of all."""
    outside = [frame for frame in frames if "torch" not in PurePath(frame["filename"]).parts]
    for frame in (outside or frames)[:1]:
        return f"{PurePath(frame['filename']).name}:{frame['line']} {frame['name']}"
    return NO_FRAME
