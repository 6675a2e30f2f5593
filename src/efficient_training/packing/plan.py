"""Which sequences share a pack: a packing, its fill, and what it is compared with.

A pack holds up to `capacity` tokens. Everything here works on lengths alone, so that a packing can be planned, and
priced, without the tokens.
"""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import UserError

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Packing:
    """Sequences by pack: pack p holds the sequences `order[starts[p]:starts[p + 1]]`, as indices, in that order."""

    capacity: int
    lengths: Integers
    order: Integers
    starts: Integers

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __iter__(self) -> Iterator[Integers]:
        return (self.order[start:stop] for start, stop in zip(self.starts[:-1], self.starts[1:], strict=True))

    @property
    def tokens(self) -> Integers:
        """Tokens in each pack, padding not among them."""
        return np.diff(np.concatenate([[0], np.cumsum(self.lengths[self.order])])[self.starts])

    @property
    def fill(self) -> float:
        """Tokens over the room of all packs: 1 where nothing is padded."""
        return float(self.lengths.sum() / (len(self) * self.capacity))


def checked_lengths(lengths: ArrayLike, capacity: int) -> Integers:
    """`lengths` (sequences,) as an array, each between 1 and `capacity` tokens.

    Raises `UserError` where there is none, one is empty, or one is longer than the pack.
    """
    array = np.asarray(lengths)
    if capacity < 1:
        raise UserError(f"packing: the capacity must be at least 1 token, got {capacity}")
    if array.ndim != 1 or not len(array):
        raise UserError("packing: there is no sequence to pack; hand in one length for each")
    if array.dtype.kind not in "iu":
        raise UserError(f"packing: lengths must be whole numbers of tokens, got {array.dtype}")
    if array.min() < 1:
        first = int(np.argmax(array < 1))
        raise UserError(f"packing: sequence {first} is empty (length {array[first]}); drop it before packing")
    if array.max() > capacity:
        first = int(np.argmax(array > capacity))
        raise UserError(
            f"packing: sequence {first} has {array[first]} tokens, more than the {capacity} of a pack; "
            "truncate or split it, or take a larger pack"
        )
    return array.astype(np.int64)


def next_fit(lengths: ArrayLike, capacity: int) -> Packing:
    """Fill one pack at a time, in the order of arrival; a sequence that does not fit opens the next pack."""
    array = checked_lengths(lengths, capacity)
    ends = np.cumsum(array).tolist()
    starts, before = [0], 0
    while before < ends[-1]:
        starts.append(bisect_right(ends, before + capacity, lo=starts[-1]))
        before = ends[starts[-1] - 1]
    return Packing(capacity, array, np.arange(len(array)), np.array(starts))


def fewest_packs(lengths: ArrayLike, capacity: int) -> int:
    """Packs below which no packing can get: Martello and Toth's bound L2 (Knapsack Problems, 1990, section 8.3).

    Two sequences of more than half a pack never share one. For each size k up to half a pack, those of more than
    `capacity - k` share with nothing of size k or more, and what lies between k and half a pack has only the rest.
    """
    array = checked_lengths(lengths, capacity)
    counts = np.bincount(array, minlength=capacity + 1)
    number, total = np.cumsum(counts), np.cumsum(counts * np.arange(capacity + 1))
    half = capacity // 2
    k = np.arange(half + 1)
    large = number[-1] - number[half]
    beside = number[capacity - k] - number[half]
    room = beside * capacity - (total[capacity - k] - total[half])
    small = total[half] - np.where(k > 0, total[k - 1], 0)
    return int(large + np.max(np.maximum(0, -((room - small) // capacity))))


def cut_documents(lengths: ArrayLike, capacity: int) -> int:
    """How many sequences are cut where all are joined in the order given, and the chain cut every `capacity` tokens."""
    array = np.asarray(lengths, dtype=np.int64)
    ends = np.cumsum(array)
    begins = ends - array
    return int(np.sum(begins // capacity != (ends - 1) // capacity))


def padded_tokens(lengths: ArrayLike, batch: int) -> int:
    """Tokens, padding among them, of batches of `batch` sequences in the order given, each padded to its longest.

    Raises `UserError` where `batch` is not positive.
    """
    if batch < 1:
        raise UserError(f"padding: a batch has at least 1 sequence, got {batch}")
    array = np.asarray(lengths, dtype=np.int64)
    starts = np.arange(0, len(array), batch)
    return int(np.sum(np.maximum.reduceat(array, starts) * np.diff(np.append(starts, len(array)))))


def gather(tokens: NDArray[Any], packing: Packing) -> Iterator[NDArray[Any]]:
    """The packs' tokens, pack by pack, from `tokens`: all sequences joined, in their own order.

    Raises `UserError` where `tokens` has not as many elements as the sequences have.
    """
    if len(tokens) != packing.lengths.sum():
        raise UserError(
            f"packing: {len(tokens)} tokens for sequences of {packing.lengths.sum()} in all; hand in all of them"
        )
    ends = np.cumsum(packing.lengths)
    pieces = zip((ends - packing.lengths)[packing.order].tolist(), ends[packing.order].tolist(), strict=True)
    for count in np.diff(packing.starts).tolist():
        yield np.concatenate([tokens[begin:end] for begin, end in islice(pieces, count)])
