"""Embedded notebook cells: that each is there, has something to show, and says in words what its figure shows."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from ...editions import load_json
from ...errors import UserError
from ..preview.cells import ANY_SHORTCODE, EMBED, SHORTCODE, cell_options
from ..preview.project import source_lines
from .problems import Problem
from .quantities import quantities
from .source import Chapter

NEEDED = {"fig": ("fig-cap", "fig-alt"), "tbl": ("tbl-cap",)}


@dataclass
class Embeds:
    """The labels that a chapter embeds, with their lines, and what is wrong with its embeds."""

    labels: dict[str, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)


def check_embeds(chapter: Chapter) -> Embeds:
    """Read the shortcodes of a chapter and the cells that they name."""
    found = Embeds()
    lines = chapter.text.splitlines()
    for number, line in source_lines(chapter.text):
        match = SHORTCODE.fullmatch(line)
        if match and match["name"] == "embed":
            if not _alone(lines, number - 1):
                message = "an embed must stand alone in its paragraph; put a blank line before and after it"
                found.problems.append(Problem(chapter.path, number, message))
            for message in _messages(chapter, match["arguments"], number, found):
                found.problems.append(Problem(chapter.path, number, message))
        elif other := ANY_SHORTCODE.search(_without_code(line)):
            what = (
                "an embed must stand alone in its paragraph" if "embed" in other[0] else "only embed is in the subset"
            )
            found.problems.append(Problem(chapter.path, number, f"{other[0]}: {what}"))
    return found


def _without_code(line: str) -> str:
    return "".join(part for index, part in enumerate(line.split("`")) if index % 2 == 0)


def _alone(lines: list[str], index: int) -> bool:
    around = [lines[place].strip() for place in (index - 1, index + 1) if 0 <= place < len(lines)]
    return all(not line or line.startswith(":::") for line in around)


def _messages(chapter: Chapter, arguments: str, number: int, found: Embeds) -> Iterator[str]:
    match = EMBED.fullmatch(arguments)
    if match is None:
        yield f"cannot read the embed {arguments!r}; write path/to/notebook.ipynb#label [echo=true]"
        return
    path, label = match["path"], match["label"]
    if label.startswith(("fig-", "tbl-")) and label in found.labels:
        yield f"the cell {label} is embedded at line {found.labels[label]} too; refer to it with @{label}"
    elif label.startswith(("fig-", "tbl-")):
        found.labels[label] = number
    try:
        cells = labelled_cells((chapter.root / chapter.path.parent / path).resolve())
    except UserError as error:
        yield str(error).replace(f"{chapter.root.resolve()}/", "")
        return
    if label not in cells:
        yield f"{path} has no cell labelled {label}; labels there: {', '.join(cells) or 'none'}"
        return
    cell, options = cells[label]
    if not any(output.get("data") or output.get("text") for output in cell.get("outputs") or ()):
        yield f"the cell {label} of {path} has no output; execute the notebook"
    for quantity in quantities(str(options.get("fig-alt") or "")):
        yield f"the fig-alt of {label} types the quantity {quantity!r} by hand; say it without the number"
    for option in NEEDED.get(label.partition("-")[0], ()):
        if not str(options.get(option) or "").strip():
            yield f'the cell {label} of {path} has no {option}; add `#| {option}: "..."` to it'


@cache
def labelled_cells(path: Path) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """The labelled code cells of a notebook, with their options; raises `UserError` where it cannot be read."""
    found: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {}
    for cell in load_json(path)["cells"]:
        if cell.get("cell_type") != "code":
            continue
        source = cell.get("source") or ""
        options, _ = cell_options("".join(source) if isinstance(source, list) else source, str(path))
        label = options.get("label")
        if isinstance(label, str):
            if label in found:
                raise UserError(f"{path}: two cells are labelled {label}; rename one")
            found[label] = (cell, options)
    return found
