"""The subset of Quarto's syntax that the book keeps to, so that Quarto and the preview render it alike."""

import re
from collections.abc import Iterator

from .problems import Problem
from .source import Chapter
from .text import classes, walk

DIVS = {f"callout-{kind}" for kind in ("note", "tip", "warning", "important", "caution")}
DIVS |= {"panel-tabset", "example", "edition-summary"}
SPANS = {"value", "claim", "given"}
COMMENT = re.compile(r"\s*<!--.*-->\s*", re.DOTALL)
EXECUTED = re.compile(r"\s*(?:`{3,}|~{3,})\s*\{(?![.#=])\s*(\w+)")


def check_syntax(chapter: Chapter) -> Iterator[Problem]:
    """Raw HTML or LaTeX, executed code, diagrams as code, unknown blocks and lists, and a page without one title."""
    for block in chapter.blocks:
        line = chapter.line(block.offset)
        if block.type == "Div":
            yield from _div(chapter, block.content[0], line)
        elif block.type == "RawBlock" and not COMMENT.fullmatch(block.content[1]):
            yield Problem(chapter.path, line, _raw(block.content))
        elif block.type == "OrderedList" and block.content[0][1]["t"] == "Example":
            message = "a line that begins with (@ is read as a numbered example; put the reference behind a word"
            yield Problem(chapter.path, line, message)
        elif block.type == "CodeBlock" and "mermaid" in block.content[0][1]:
            message = "a mermaid diagram is outside the subset; draw the figure in a notebook and embed it"
            yield Problem(chapter.path, line, message)
        for node in walk(block.inlines):
            if node["t"] == "RawInline" and not COMMENT.fullmatch(node["c"][1]):
                yield Problem(chapter.path, chapter.line_of(node["c"][1], block.offset), _raw(node["c"]))
            elif node["t"] == "Span" and (unknown := classes(node) - SPANS):
                message = f"a span of class {min(unknown)} is outside the subset; known: {', '.join(sorted(SPANS))}"
                yield Problem(chapter.path, chapter.line_of("." + min(unknown), block.offset), message)
    for number, text in enumerate(chapter.text.splitlines(), start=1):
        if match := EXECUTED.match(text):
            message = f"an executed cell ({match[1]}) is outside the subset; put the code in a notebook and embed it"
            yield Problem(chapter.path, number, message)
    yield from _title(chapter)


def _raw(content: list[str]) -> str:
    return f"raw {content[0]} ({' '.join(content[1].split())[:40]}) is outside the subset; write it in Markdown"


def _div(chapter: Chapter, attributes: tuple[str, list[str], list[list[str]]], line: int) -> Iterator[Problem]:
    identifier, names, _ = attributes
    name = next((name for name in names if name not in DIVS), None)
    if name is not None or not names:
        called = f"class {name}" if name else f"no class (#{identifier})" if identifier else "no class"
        place = chapter.line_of(f".{name}" if name else f"#{identifier}") if name or identifier else line
        message = f"a block of {called} is outside the subset; known: {', '.join(sorted(DIVS))}"
        yield Problem(chapter.path, place, message)


def _title(chapter: Chapter) -> Iterator[Problem]:
    titles = [block for block in chapter.blocks if block.type == "Header" and block.content[0] == 1]
    if not titles or not chapter.blocks or chapter.blocks[0] is not titles[0]:
        yield Problem(chapter.path, 1, "the page must begin with its title: # Title {#sec-name}")
    for extra in titles[1:]:
        yield Problem(chapter.path, chapter.line(extra.offset), "a page has one title; make this a section (##)")
