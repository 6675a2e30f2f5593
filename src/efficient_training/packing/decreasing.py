"""First-fit and best-fit decreasing: the longest sequence first, into the first or the tightest pack that has room.

Both are run for all sequences of one length at a time. What a pack does for one of them it does for the next as long
as it has room, and lengths are whole numbers up to the capacity, so there is no search per sequence.
"""

from collections import defaultdict

import numpy as np
from numpy.typing import ArrayLike

from .plan import Integers, Packing, checked_lengths


def first_fit_decreasing(lengths: ArrayLike, capacity: int) -> Packing:
    """Each sequence, longest first, into the first pack that has room; equal ones in the order given.

    Raises `UserError` as `checked_lengths` does.
    """
    array = checked_lengths(lengths, capacity)
    order, distinct, counts = _longest_first(array)
    numbers = np.empty(0, dtype=np.int64)  # packs that may still take something, in the order of their opening,
    spaces = np.empty(0, dtype=np.int64)  # and the tokens that fit into each
    opened = 0
    owners = []
    shortest = int(distinct[-1])
    for length, count in zip(distinct.tolist(), counts.tolist(), strict=True):
        fitting = np.flatnonzero(spaces >= length)
        taken = spaces[fitting] // length
        before = np.cumsum(taken) - taken
        taken = np.clip(count - before, 0, taken)
        spaces[fitting] -= taken * length
        owners.append(np.repeat(numbers[fitting], taken))
        rest = count - int(taken.sum())
        if rest:
            each = capacity // length
            new = -(-rest // each)
            taken = np.full(new, each)
            taken[-1] = rest - each * (new - 1)
            fresh = np.arange(opened, opened + new)
            owners.append(np.repeat(fresh, taken))
            numbers, spaces = np.append(numbers, fresh), np.append(spaces, capacity - taken * length)
            opened += new
        useful = spaces >= shortest
        if np.count_nonzero(useful) < 0.9 * len(useful):
            numbers, spaces = numbers[useful], spaces[useful]
    return _by_pack(capacity, array, order, np.concatenate(owners))


def best_fit_decreasing(lengths: ArrayLike, capacity: int) -> Packing:
    """Each sequence, longest first, into the pack that it leaves the least room in; of equal packs, the last one used.

    Packs are kept by the tokens that still fit into them. A whole number has bit s set where a pack with s tokens left
    exists; its lowest bit at or above a length is the tightest pack. No other pack is between the two, so those found
    take sequences of this length, each in turn, until one more does not fit, as they would one by one.

    Raises `UserError` as `checked_lengths` does.
    """
    array = checked_lengths(lengths, capacity)
    order, distinct, counts = _longest_first(array)
    packs: defaultdict[int, list[int]] = defaultdict(list)  # by the tokens that still fit
    present = opened = 0
    owners: list[int] = []
    for length, count in zip(distinct.tolist(), counts.tolist(), strict=True):
        while count:
            above = present >> length
            if above:
                space = length + (above & -above).bit_length() - 1
                each = space // length
                found = packs[space]
                number = min(len(found), -(-count // each))
                using = found[: -number - 1 : -1]
                del found[-number:]
                if not found:
                    present ^= 1 << space
            else:
                space, each = capacity, capacity // length
                number = -(-count // each)
                using = list(range(opened, opened + number))
                opened += number
            partial = count % each if number * each > count else 0  # sequences in the last pack, where it is not filled
            if partial:
                last = using.pop()
            owners += using if each == 1 else [pack for pack in using for _ in range(each)]
            if using:
                packs[space - each * length] += using
                present |= 1 << (space - each * length)
            if partial:
                owners += [last] * partial
                packs[space - partial * length].append(last)
                present |= 1 << (space - partial * length)
            count -= len(using) * each + partial
        present &= ~1  # a full pack is never asked for
    return _by_pack(capacity, array, order, np.array(owners, dtype=np.int64))


def _longest_first(lengths: Integers) -> tuple[Integers, Integers, Integers]:
    """Indices of the sequences, longest first, equal ones as given; the distinct lengths likewise; their counts."""
    below = lengths.max() - lengths
    # A stable sort of 16-bit numbers is a radix sort, in time proportional to their number.
    order = np.argsort(below.astype(np.uint16) if below.max() < 2**16 else below, kind="stable")
    distinct, counts = np.unique(lengths, return_counts=True)
    return order, distinct[::-1], counts[::-1]


def _by_pack(capacity: int, lengths: Integers, order: Integers, owners: Integers) -> Packing:
    """The packing in which pack `owners[i]` has the sequence `order[i]`."""
    sizes = np.bincount(owners)
    return Packing(capacity, lengths, order[np.argsort(owners, kind="stable")], np.concatenate([[0], np.cumsum(sizes)]))
