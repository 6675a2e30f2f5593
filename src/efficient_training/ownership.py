"""Which parameters' optimizer state each rank holds under ZeRO-1, as torch's `ZeroRedundancyOptimizer` divides them."""

from collections.abc import Sequence


def owned_by_rank(elements: Sequence[int], ranks: int) -> list[list[int]]:
    """The positions in `elements` (of each parameter) that each rank owns, in the order in which it steps them.

    Whole parameters, the largest first, each to the rank that has the fewest elements so far (the first, where several
    have): `ZeroRedundancyOptimizer._partition_parameters`.
    """
    owned: list[list[int]] = [[] for _ in range(ranks)]
    held = [0] * ranks
    for position in sorted(range(len(elements)), key=lambda one: elements[one], reverse=True):
        rank = held.index(min(held))
        owned[rank].append(position)
        held[rank] += elements[position]
    return owned


def heaviest_rank(elements: Sequence[int], ranks: int) -> int:
    """The rank that owns the most elements, the first where several do."""
    held = [sum(elements[one] for one in owned) for owned in owned_by_rank(elements, ranks)]
    return held.index(max(held))
