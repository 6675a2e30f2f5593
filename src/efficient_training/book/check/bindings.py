"""Values and claims in prose: the names, formats and units that the Lua filter will meet.

The filter refuses the same things when the book is rendered (a test holds the two together); here they have lines.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from ...claims import Claim
from ...records import Record
from ...units import convert, unit, units
from .problems import Problem
from .source import Chapter
from .text import attributes, children, classes, stringify, walk

FORMAT = re.compile(r",?d|,?\.\d\d?f|\.\d\d?[ge]|,?\.\d\d?%")
PERCENT_OF = {"share", "ratio", "plain number"}
ALLOWED = {"value": {"fmt", "unit"}, "claim": {"name"}, "given": set[str]()}


def check_chapter(chapter: Chapter, records: Mapping[str, Record], claims: Mapping[str, Claim]) -> Iterator[Problem]:
    """What is wrong with the values and claims of a chapter."""
    for block in chapter.blocks:
        for span in walk(block.inlines):
            if span["t"] != "Span" or not (kinds := classes(span) & set(ALLOWED)):
                continue
            text = stringify(children(span))
            line = chapter.line_of(f"[{text}]" if "value" in kinds else f"[{text}", block.offset)
            for message in _messages(span, text, kinds, records, claims):
                yield Problem(chapter.path, line, message)
            if block.type == "Header" and block.content[0] == 1 and "value" in kinds:
                message = "a value in a chapter's title does not reach the sidebar; put it in the text"
                yield Problem(chapter.path, line, message)


def _messages(
    span: Any, text: str, kinds: set[str], records: Mapping[str, Record], claims: Mapping[str, Claim]
) -> Iterator[str]:
    given = attributes(span)
    if len(kinds) > 1:
        yield f"[{text}] has the classes {', '.join(sorted(kinds))}; a span is a value, a claim or given"
        return
    (kind,) = kinds
    if unknown := sorted(set(given) - ALLOWED[kind]):
        known = ", ".join(sorted(ALLOWED[kind])) or "none"
        yield f"unknown attribute {unknown[0]} of [{text}]{{.{kind}}}; known: {known}"
    if kind == "value":
        if text in records:
            if fault := value_fault(records[text], given.get("fmt"), given.get("unit")):
                yield f"{text}: {fault}"
        else:
            yield f"no record called {text!r}{_hint(text, records, claims, 'claim')}"
    if kind == "claim":
        name = given.get("name", "")
        if name not in claims:
            yield f"no claim called {name!r}{_hint(name, claims, records, 'record')}"


def _hint(name: str, same: Mapping[str, object], other: Mapping[str, object], kind: str) -> str:
    if name in other:
        return f"; there is a {kind} of that name"
    import difflib

    close = difflib.get_close_matches(name, same, n=1)
    return f"; did you mean {close[0]!r}?" if close else " in the executed notebooks"


def value_fault(record: Record, fmt: str | None, wanted: str | None) -> str | None:
    """Why the filter could not print `record` so, or `None` where it can."""
    target = record.unit
    if wanted is not None and wanted != "-":
        if wanted not in units():
            return f"unknown unit {wanted}; known: {', '.join(units())}"
        if unit(wanted).dimension != unit(record.unit).dimension:
            return f"cannot show {record.unit} ({unit(record.unit).dimension}) as {wanted} ({unit(wanted).dimension})"
        target = wanted
    if fmt is None:
        return None
    if not FORMAT.fullmatch(fmt):
        return f"bad fmt {fmt}, use one like ,d .2f ,.1f .3g .2e .1%"
    if fmt.endswith("%") and unit(target).dimension not in PERCENT_OF:
        return f"fmt {fmt} needs a fraction or a ratio, the record is in {record.unit}"
    if fmt.endswith("d") and record.value is not None:
        value = convert(record.value, record.unit, target)
        if value != int(value):
            return f"fmt {fmt} needs a whole number, the value is {value:.6g}; use .1f or another"
    return None
