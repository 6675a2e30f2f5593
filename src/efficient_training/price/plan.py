"""The blocks of a model in symbols: a few that stand for all.

Blocks that are alike are not run one by one: the first, one that stands for all between, and the last. Where there is
one block only, the one between stands for minus one, so that what first and last leave behind counts once in all.
Bytes change by the same amount from block to block, so that no peak lies between the first and the last.

Under FSDP2 the first has nothing to gather ahead in backward, and the last finds nothing that is being reduced; so that
the second and the last but one are there too, as the ends of those between. So it is with an adapter on a frozen model,
where the first block differs: its input needs no gradient.
"""

from collections.abc import Sequence
from typing import NamedTuple

from .algebra import ONE, Size
from .sizes import (
    FOUR_BLOCKS,
    FOUR_SEGMENTS,
    FURTHER_BLOCKS,
    FURTHER_IN_LAST,
    FURTHER_IN_SEGMENT,
    FURTHER_SEGMENTS,
    THREE_BLOCKS,
    THREE_SEGMENTS,
    TWO_BLOCKS,
    TWO_IN_LAST,
    TWO_IN_SEGMENT,
    TWO_SEGMENTS,
)
from .tape import WHOLE, Region
from .words import Words

NOWHERE = Size.of(0)


class Segment(NamedTuple):
    """A segment of blocks, where and how often it is there, and the regions of its blocks."""

    region: Region
    blocks: Sequence[Region]


def plan(words: Words) -> list[Segment]:
    """The segments of a model in symbols.

    Without checkpointing, and with a selective one, each block is a segment. With full checkpointing a segment has
    several, and the last one may have fewer; so that the one before it is there by itself too, where there is one.
    """
    full = words.checkpointing == "full"
    if words.fsdp or words.adapter != "none":
        return _five(full and not words.single, first_differs=words.adapter != "none", by_segments=full)
    if not full:
        return [Segment(region, [WHOLE]) for region in alike(FURTHER_BLOCKS, TWO_BLOCKS)]
    whole, last = _inner()
    return [
        Segment(WHOLE, whole),
        Segment(Region(FURTHER_SEGMENTS - 2, NOWHERE), whole),
        Segment(Region(ONE, TWO_SEGMENTS), whole),
        Segment(WHOLE, last),
    ]


def alike(further: Size, two: Size) -> list[Region]:
    """The regions of `further` + 1 things that are alike: a first, one for those between, and a last.

    `two` is 1 where there are two or more, so that the first is not the last, and the last is handed something.
    """
    return [Region(there=two), Region(further - 1, NOWHERE, two), WHOLE]


def _inner() -> tuple[list[Region], list[Region]]:
    """The blocks of a whole segment, and of the last one."""
    return alike(FURTHER_IN_SEGMENT, TWO_IN_SEGMENT), alike(FURTHER_IN_LAST, TWO_IN_LAST)


def _five(several: bool, first_differs: bool, by_segments: bool) -> list[Segment]:
    """The first, the second where there are three, those between, the last but one of four, the last of two.

    `several` blocks may stand in a segment. `first_differs`: the first block is unlike those that follow, in its
    segment too, which then has two or more.
    """
    whole, last = _inner() if several else ([WHOLE], [WHOLE])
    first = whole
    if several and first_differs:
        first = [WHOLE, Region(FURTHER_IN_SEGMENT - 1, NOWHERE), WHOLE]
    two, three, four = SEVERAL[by_segments]
    further = FURTHER_SEGMENTS if by_segments else FURTHER_BLOCKS
    regions = [WHOLE, Region(ONE, three), Region(further - 3, NOWHERE), Region(ONE, four)]
    others = [Segment(region, whole) for region in regions[1:]]
    return [Segment(WHOLE, first), *others, Segment(Region(ONE, two), last)]


SEVERAL = {
    True: (TWO_SEGMENTS, THREE_SEGMENTS, FOUR_SEGMENTS),
    False: (TWO_BLOCKS, THREE_BLOCKS, FOUR_BLOCKS),
}
"""Whether there are two, three, four segments or more: under full checkpointing, and otherwise."""
