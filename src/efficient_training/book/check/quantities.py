"""Numbers with a unit in prose: bound to a record, cited in the same sentence, or given; and how many of each.

A quantity is a number, in digits, before a unit of the book, a percent sign, `×`, `x`, "times" or "fold"; or a number
word before "times", "fold", "percent", or a unit of bytes or time. "Twice" and "half" are left alone: most of their
uses are no measurement ("half precision", "runs twice"). So are counts of things (24 blocks, 4 steps), names of formats
(16-bit) and of models (7B).
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ...claims import Claim
from .problems import Problem
from .source import Block, Chapter
from .text import BOUND, CITED, MARKS, attributes, children, classes, prose, stringify, walk

NUMBER = r"\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?(?:\s?×\s?10)?(?:\^\s?[-−]?\d+)?"
SCALE = r"(?:\s?(?:[kKMBT]|thousand|million|billion|trillion)(?=\s))?"
RANGE = rf"{NUMBER}(?:\s?(?:[–—-]|to|and|or)\s?{NUMBER})?{SCALE}"
WORDS = (
    "two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|fifteen|sixteen|twenty|thirty|forty|fifty|sixty|"
    "seventy|eighty|ninety|(?:a |one )?hundred|(?:a |one )?thousand|(?:a |one )?million|(?:a |one )?billion"
)
BYTES = r"[kKMGTP]i?B|bytes?"
TIME = r"ns|[µμ]s|ms|secs?|seconds?|milliseconds?|microseconds?|min|minutes?|hours?|days?|weeks?|months?|years?"
WORK = r"[kMGTPE]?FLOPS?|[kMGTPE]?FLOPs|tokens?|params?|parameters?|[kM]?Wh|[kMG]Hz"
SPACED = r"bits?|B|s|h|d|kW|W"

QUANTITY = re.compile(
    rf"(?<![\w.^_/])(?<![A-Za-z]-){RANGE}"
    rf"(?:[\s-]?(?:{BYTES}|{TIME}|{WORK})(?![\w])|\s(?:{SPACED})(?![\w-])"
    rf"|\s?(?:%|percent\b|per cent\b|percentage points?\b)"
    rf"|×(?!\s?[\d{MARKS}])|x(?!\w)|\s?times\b(?!\s?\d)|\s?-?fold\b)"
    rf"|(?<=\s)×{NUMBER}"
    rf"|\b(?:{WORDS})(?:\stimes\b|[\s-]?fold\b|\s(?:percent|per cent)\b|[\s-](?:{BYTES}|{TIME})(?!\w)|\sbits\b)",
)
ABBREVIATION = re.compile(r"\b(?:e\.g|i\.e|cf|vs|etc|al|Fig|Figs|Eq|Eqs|Sec|Ch|approx|resp)\.$")
SENTENCE_END = re.compile(r"[.!?][\"”’)\]]*\s+")


@dataclass(frozen=True)
class Counts:
    """How many numbers of a chapter are bound to a record or claim, cited, and given."""

    bound: int = 0
    cited: int = 0
    given: int = 0

    def __str__(self) -> str:
        return f"{self.bound} bound, {self.cited} cited, {self.given} given"


def sentences(text: str) -> Iterator[str]:
    """The sentences of `text`; a full stop after a usual abbreviation ends none."""
    start = 0
    for end in SENTENCE_END.finditer(text):
        if not ABBREVIATION.search(text[start : end.start() + 1]):
            yield text[start : end.end()]
            start = end.end()
    yield text[start:]


def quantities(text: str) -> list[str]:
    """The quantities in `text`, as written."""
    return [match[0].strip() for match in QUANTITY.finditer(text)]


def check_chapter(chapter: Chapter, claims: Mapping[str, Claim]) -> tuple[list[Problem], Counts]:
    """The hand-typed quantities of a chapter and the misplaced given ones; and its counts."""
    problems: list[Problem] = []
    bound = cited = given = 0
    for block in chapter.blocks:
        for span in walk(block.inlines):
            if span["t"] != "Span":
                continue
            kinds = classes(span)
            bound += bool(kinds & {"value", "claim"})
            given += "given" in kinds
            if "claim" in kinds:
                problems += _in_claim(chapter, block, span, claims)
            if "given" in kinds and not block.given:
                words = stringify(children(span))
                message = (
                    f"[{words}]{{.given}} stands outside an exercise, a definition or an .example block; "
                    "bind it to a record or cite its source"
                )
                problems.append(_problem(chapter, block, f"[{words}]", message))
        for sentence in sentences(prose(block.inlines)):
            found = quantities(sentence)
            if CITED in sentence or block.cited:
                cited += len(found)
            else:
                problems += [_hand_typed(chapter, block, quantity) for quantity in found]
    return problems, Counts(bound, cited, given)


def _hand_typed(chapter: Chapter, block: Block, quantity: str) -> Problem:
    fix = "mark it [...]{.given}" if block.given else "bind it to a record or cite its source in the sentence"
    return _problem(chapter, block, quantity, f"the quantity {quantity!r} is typed by hand; {fix}")


def _in_claim(chapter: Chapter, block: Block, span: Any, claims: Mapping[str, Claim]) -> Iterator[Problem]:
    """A quantity in the text of a claim must be one that its tested statement names."""
    claim = claims.get(attributes(span).get("name", ""))
    inner = prose(children(span)).replace(BOUND, "")
    for quantity in quantities(inner):
        if claim is not None and "".join(quantity.split()) not in "".join(claim.statement.split()):
            message = (
                f"the quantity {quantity!r} in the claim {claim.name} is not in its statement; bind it to a record"
            )
            yield _problem(chapter, block, quantity, message)


def _problem(chapter: Chapter, block: Block, words: str, message: str) -> Problem:
    return Problem(chapter.path, chapter.line_of(words, block.offset), message)
