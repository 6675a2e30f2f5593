"""What a chapter points at: labels, citations, links and pictures; and that each picture has alternative text."""

import posixpath
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from ...project import read_text
from .problems import Problem
from .quantities import quantities
from .source import Block, Chapter
from .text import CROSS_REFERENCE, attributes, stringify, walk

EQUATION = re.compile(r"\{#(eq-[\w-]+)\}")
ENTRY = re.compile(r"^\s*@(?!comment|string|preamble)\w+\s*[{(]\s*([^,\s]+)\s*,", re.MULTILINE | re.IGNORECASE)
EXTERNAL = re.compile(r"[A-Za-z][\w+.-]*:")
BOOK_WIDE = ("fig-", "tbl-", "eq-", "sec-", "lst-")


def bibliography_keys(paths: Sequence[Path]) -> set[str]:
    """The keys of BibTeX files; files that are not there have none."""
    return {key for path in paths if path.is_file() for key in ENTRY.findall(read_text(path))}


def check_references(
    chapters: Sequence[Chapter], embedded: Mapping[Path, Mapping[str, int]], keys: set[str]
) -> Iterator[Problem]:
    """Labels, references, links and pictures of the whole book; `embedded` has each chapter's embedded labels."""
    places: dict[str, list[tuple[Path, int]]] = defaultdict(list)
    anchors: dict[str, set[str]] = {}
    for chapter in chapters:
        own = [*_labels(chapter), *embedded.get(chapter.path, {}).items()]
        anchors[chapter.path.as_posix()] = {label for label, _ in own} | set(_automatic(chapter))
        for label, line in own:
            places[label].append((chapter.path, line))
    yield from _duplicates(places)
    labels = {label for label in places if label.startswith(BOOK_WIDE)}
    for chapter in chapters:
        for block in chapter.blocks:
            for node in walk(block.inlines):
                if node["t"] == "Cite":
                    yield from _citation(chapter, block, node, labels, keys)
                elif node["t"] == "Link":
                    yield from _link(chapter, block, node, anchors)
                elif node["t"] == "Image":
                    yield from _image(chapter, block, node)


def _labels(chapter: Chapter) -> Iterator[tuple[str, int]]:
    """The labels written in the chapter, with their lines."""
    for block in chapter.blocks:
        found: list[str] = []
        if block.type in ("Header", "Figure", "Table", "Div", "CodeBlock"):
            attr = block.content[1] if block.type == "Header" else block.content[0]
            found.append(attr[0])
        found += [node["c"][0][0] for node in walk(block.inlines) if node["t"] in ("Span", "Image", "Link", "Code")]
        if any(node["t"] == "Math" for node in block.inlines):
            found += EQUATION.findall(stringify(block.inlines))
        for label in found:
            if label and f"#{label}" in chapter.text:
                yield label, chapter.line(_label_place(chapter, label, block.offset))


def _label_place(chapter: Chapter, label: str, start: int) -> int:
    pattern = re.compile(rf"\{{#{re.escape(label)}(?![\w-])")
    found = pattern.search(chapter.text, start) or pattern.search(chapter.text)
    return found.start() if found else start


def _automatic(chapter: Chapter) -> Iterator[str]:
    for block in chapter.blocks:
        if block.type == "Header":
            yield block.content[1][0]


def _duplicates(places: Mapping[str, list[tuple[Path, int]]]) -> Iterator[Problem]:
    for label, found in places.items():
        for index, (path, line) in enumerate(found[1:], start=1):
            earlier = found[:index] if label.startswith(BOOK_WIDE) else [at for at in found[:index] if at[0] == path]
            if earlier:
                first = f"{earlier[0][0].as_posix()}:{earlier[0][1]}"
                yield Problem(path, line, f"the label {label} stands at {first} too; give each its own")


def _citation(chapter: Chapter, block: Block, node: Any, labels: set[str], keys: set[str]) -> Iterator[Problem]:
    names = [citation["citationId"] for citation in node["c"][0]]
    is_label = [CROSS_REFERENCE.match(name) is not None for name in names]
    for name, cross in zip(names, is_label, strict=True):
        line = chapter.line_of(f"@{name}", block.offset)
        if cross and name[0].lower() + name[1:] not in labels:
            yield Problem(chapter.path, line, f"unresolved cross-reference @{name}; no such label in the book")
        elif not cross and name not in keys:
            yield Problem(chapter.path, line, f"no entry {name} in the bibliography; add it, or mend the key")
    if any(is_label) and not all(is_label):
        line = chapter.line_of(f"@{names[0]}", block.offset)
        yield Problem(chapter.path, line, f"@{names[0]}: cite a source and a figure in brackets of their own")


def _link(chapter: Chapter, block: Block, node: Any, anchors: Mapping[str, set[str]]) -> Iterator[Problem]:
    target = unquote(node["c"][2][0])
    if EXTERNAL.match(target):
        return
    line = chapter.line_of(node["c"][2][0], block.offset)
    path, _, anchor = target.partition("#")
    base = "" if path.startswith("/") else chapter.path.parent.as_posix()
    name = posixpath.normpath(posixpath.join(base, path.lstrip("/"))) if path else chapter.path.as_posix()
    if path.endswith(".qmd") and name not in anchors:
        yield Problem(chapter.path, line, f"the link to {path} leads to no page of the book")
    elif not (chapter.root / name).exists():
        yield Problem(chapter.path, line, f"the link to {path} leads to no file; mend the path")
    elif anchor and name in anchors and anchor not in anchors[name]:
        yield Problem(chapter.path, line, f"the link to {target} leads to no anchor of {name}")


def _image(chapter: Chapter, block: Block, node: Any) -> Iterator[Problem]:
    source = unquote(node["c"][2][0])
    line = chapter.line_of(f"]({node['c'][2][0]}", block.offset)
    alternative = attributes(node).get("fig-alt", "").strip()
    for quantity in quantities(alternative):
        message = f"the fig-alt of {source} types the quantity {quantity!r} by hand; say it without the number"
        yield Problem(chapter.path, line, message)
    if not alternative:
        yield Problem(chapter.path, line, f'the picture {source} has no alternative text; add {{fig-alt="..."}}')
    if EXTERNAL.match(source) or source.startswith("//"):
        yield Problem(chapter.path, line, f"the picture {source} is not a file of the book; put it under chapters/")
    elif not (chapter.root / chapter.path.parent / source).is_file():
        yield Problem(chapter.path, line, f"the picture {source} does not exist")
