"""The captions of notebook cells, which stand in the book's pages and obey the rules of its prose."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from ...errors import UserError
from .embeds import labelled_cells
from .problems import Problem
from .source import Chapter, parse

OPTIONS = ("fig-cap", "tbl-cap")


@dataclass(frozen=True)
class Captions:
    """The captions of one notebook as a page of one paragraph each, and the notebook's line of each paragraph."""

    page: Chapter
    lines: dict[int, int]

    def place(self, problem: Problem) -> Problem:
        """A problem of the page, told of the notebook's line."""
        return replace(problem, line=self.lines.get(problem.line, 1))


def read_captions(root: Path) -> Iterator[Captions]:
    """The captions of each notebook that has any; notebooks that cannot be read are somebody else's problem."""
    for path in sorted((root / "notebooks").glob("*.ipynb")):
        try:
            cells = labelled_cells(path.resolve())
            source = path.read_text(encoding="utf-8")
        except (UserError, ValueError):
            continue
        paragraphs: list[str] = []
        lines: dict[int, int] = {}
        for _, (cell, options) in cells.items():
            for text in (options[option] for option in OPTIONS if options.get(option)):
                lines[2 * len(paragraphs) + 1] = source.count("\n", 0, source.find(json.dumps(cell.get("id")))) + 1
                paragraphs.append(" ".join(str(text).split()))
        if paragraphs:
            yield Captions(parse(root, path.relative_to(root), "\n\n".join(paragraphs) + "\n"), lines)


def placed(captions: Captions, problems: Iterable[Problem]) -> list[Problem]:
    """Problems of a page of captions, each at its place in the notebook."""
    return [captions.place(problem) for problem in problems]
