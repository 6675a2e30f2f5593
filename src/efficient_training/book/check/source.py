"""A chapter as the checks see it: pandoc's document of it, flattened to blocks that know where they stand.

pandoc tells no line numbers for this dialect, so a block's place is found by its first words, searched from where the
block before it was found.
"""

import json
import re
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...errors import UserError
from ...project import read_text
from ..preview.pandoc import READER, executable
from .text import first_words

EXERCISES = re.compile(r"(^|-)exercises?$")
FREE_TITLE = re.compile(r"\s*(exercise|solution|definition|example)", re.IGNORECASE)
FREE_CLASSES = {"example"}


@dataclass(frozen=True)
class Block:
    """One block: pandoc's type and content, its text where it is a leaf, and what holds for numbers in it.

    `given`: it stands where a number may be typed by hand. `cited`: a citation covers it from outside (a table's
    caption or row).
    """

    type: str
    content: Any
    offset: int
    inlines: list[Any] = field(default_factory=list)
    given: bool = False
    cited: bool = False


@dataclass
class Chapter:
    """One page of the book: `path` is relative to the project's root."""

    root: Path
    path: Path
    text: str
    blocks: list[Block] = field(default_factory=list)

    def line(self, offset: int) -> int:
        """The line, from 1, of a place in the text."""
        return self.text.count("\n", 0, max(offset, 0)) + 1

    def find(self, words: str, start: int = 0) -> int:
        """Where `words` stand from `start` on, whatever white space or emphasis is between; else `start`."""
        pattern = r"[\s>*_|]+".join(map(re.escape, words.split()))
        if not pattern:
            return start
        found = re.compile(pattern).search(self.text, start) or re.search(pattern, self.text)
        return found.start() if found else start

    def line_of(self, words: str, start: int = 0) -> int:
        """The line where `words` stand."""
        return self.line(self.find(words, start))


def read_chapters(root: Path, names: list[str]) -> list[Chapter]:
    """Read and parse these pages of the book; raises `UserError` where pandoc cannot."""
    with ThreadPoolExecutor() as pool:
        return list(pool.map(lambda name: _read(root, name), names))


def _read(root: Path, name: str) -> Chapter:
    return parse(root, Path(name), read_text(root / name))


def parse(root: Path, path: Path, text: str) -> Chapter:
    """The chapter of this text; `path` is what its problems are told of."""
    command = [executable(), "--from", READER + "-smart-native_divs-native_spans", "--to", "json"]
    done = subprocess.run(command, input=text, capture_output=True, encoding="utf-8", check=False)
    if done.returncode:
        raise UserError(f"{path}: pandoc cannot read it ({' '.join(done.stderr.split())})")
    chapter = Chapter(root, path, text)
    chapter.blocks = list(_Walk(chapter).blocks(json.loads(done.stdout)["blocks"], False))
    return chapter


class _Walk:
    """Goes through a document in order, keeping the place in the text and whether this is the exercises' section."""

    def __init__(self, chapter: Chapter) -> None:
        self.chapter = chapter
        self.place = 0
        self.exercises_level = 0

    def blocks(self, nodes: list[Any], given: bool, cited: bool = False) -> Iterator[Block]:
        for node in nodes:
            content = node.get("c")
            match node["t"]:
                case "Para" | "Plain":
                    yield from self.leaf(node["t"], content, content, given, cited)
                case "Header":
                    level, attributes, inlines = content
                    if self.exercises_level and level <= self.exercises_level:
                        self.exercises_level = 0
                    if EXERCISES.search(attributes[0]):
                        self.exercises_level = level
                    yield from self.leaf("Header", content, inlines, given, cited)
                case "LineBlock":
                    for line in content:
                        yield from self.leaf("Plain", line, line, given, cited)
                case "BlockQuote":
                    yield from self.blocks(content, given, cited)
                case "BulletList" | "OrderedList":
                    yield Block(node["t"], content, self.place)
                    for item in content if node["t"] == "BulletList" else content[1]:
                        yield from self.blocks(item, given, cited)
                case "DefinitionList":
                    for term, definitions in content:
                        yield from self.leaf("Plain", term, term, True, cited)
                        for definition in definitions:
                            yield from self.blocks(definition, True, cited)
                case "Div":
                    yield Block("Div", content, self.place)
                    yield from self.blocks(content[1], given or _is_free(content[0]), cited)
                case "Figure":
                    yield from self.captioned("Figure", content, content[1][1], given, cited)
                    yield from self.blocks(content[2], given, cited)
                case "Table":
                    yield from self.table(content, given, cited)
                case "CodeBlock" | "RawBlock":
                    self.place = self.chapter.find(" ".join(str(content[1]).split("\n")[0].split()), self.place)
                    yield Block(node["t"], content, self.place)

    def leaf(self, kind: str, content: Any, inlines: list[Any], given: bool, cited: bool) -> Iterator[Block]:
        words = first_words(inlines)
        self.place = self.chapter.find(words, self.place) if words else self.place
        given = given or self.exercises_level > 0
        yield Block(kind, content, self.place, inlines, given, cited)
        for note in _notes(inlines):
            yield from _Note(self.chapter, self.exercises_level).blocks(note, given, cited)

    def captioned(self, kind: str, content: Any, caption: list[Any], given: bool, cited: bool) -> Iterator[Block]:
        leaves = list(self.blocks(caption, given, cited))
        yield Block(kind, content, leaves[0].offset if leaves else self.place)
        yield from leaves

    def table(self, content: Any, given: bool, cited: bool) -> Iterator[Block]:
        _, (_, caption), _, (_, head), bodies, (_, foot) = content
        start = self.place
        cited = cited or _has_citation(caption)
        for _, cells in [*head, *(row for body in bodies for row in [*body[2], *body[3]]), *foot]:
            row_cited = cited or _has_citation(cells)
            for cell in cells:
                yield from self.blocks(cell[4], given, row_cited)
        after = self.place
        self.place = start
        yield from self.captioned("Table", content, caption, given, cited)
        self.place = max(after, self.place)


class _Note(_Walk):
    """A footnote's text stands anywhere in the source, so it is searched from the start."""

    def __init__(self, chapter: Chapter, exercises_level: int) -> None:
        super().__init__(chapter)
        self.exercises_level = exercises_level


def _is_free(attributes: Any) -> bool:
    """Whether a div with these attributes is an example, an exercise or a definition."""
    _, classes, pairs = attributes
    title = dict(pairs).get("title", "")
    is_callout = any(name.startswith("callout-") for name in classes)
    return bool(FREE_CLASSES & set(classes)) or (is_callout and FREE_TITLE.match(title) is not None)


def _notes(nodes: Any) -> Iterator[list[Any]]:
    for node in nodes if isinstance(nodes, list) else ():
        if isinstance(node, dict):
            if node["t"] == "Note":
                yield node["c"]
            elif node["t"] != "Cite":
                yield from _notes(node.get("c"))
        else:
            yield from _notes(node)


def _has_citation(node: Any) -> bool:
    if isinstance(node, list):
        return any(map(_has_citation, node))
    if isinstance(node, dict):
        return node.get("t") == "Cite" or _has_citation(node.get("c"))
    return False
