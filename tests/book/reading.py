"""Reading rendered pages back, and changing the sample book, for the tests of the preview."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bs4 import BeautifulSoup, Tag

from efficient_training.book.preview import render_preview
from efficient_training.errors import UserErrors

Edit = Callable[[str, str, str], None]
NOTEBOOK = "notebooks/sample.ipynb"


def page(book: Path, name: str) -> BeautifulSoup:
    return BeautifulSoup((book / name).read_text(encoding="utf-8"), "html.parser")


def one(soup: BeautifulSoup | Tag, selector: str) -> Tag:
    found = soup.select(selector)
    assert len(found) == 1, f"{selector}: {len(found)} found"
    return found[0]


def text(tag: Tag) -> str:
    return " ".join(tag.get_text().split())


def change_cell(sample: Path, label: str, change: Callable[[dict[str, Any]], None]) -> None:
    """Let `change` alter the notebook's cell of this label."""
    path = sample / NOTEBOOK
    notebook = json.loads(path.read_text(encoding="utf-8"))
    cells = [cell for cell in notebook["cells"] if f"label: {label}\n" in "".join(cell["source"])]
    assert len(cells) == 1
    change(cells[0])
    path.write_text(json.dumps(notebook), encoding="utf-8")


def problems(sample: Path) -> list[str]:
    """What rendering complains of, paths shortened; nothing may have been written."""
    with pytest.raises(UserErrors) as caught:
        render_preview(sample, sample / "_book")
    assert not (sample / "_book").exists()
    return [line.replace(str(sample.resolve()) + "/", "") for line in caught.value.problems]
