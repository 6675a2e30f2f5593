"""What a notebook cell shows: text with data behind it, and tables."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

METADATA_KEY = "efficient_training"
"""The key of an output's (and of a notebook's) metadata under which this package keeps its JSON."""


def show(text: str, data: Mapping[str, Any]) -> None:
    """Display `text`, with `data` in the output's metadata; outside a notebook, print the text."""
    try:
        from IPython import get_ipython
        from IPython.display import display
    except ImportError:
        print(text)
        return
    if get_ipython() is None:
        print(text)
        return
    display({"text/plain": text}, raw=True, metadata={METADATA_KEY: dict(data)})


def table(rows: Iterable[Sequence[object]], columns: Sequence[str], *, align: str | None = None) -> None:
    """Display a pipe table. `align` has one letter a column (l, r, c); numbers are to be formatted by the caller.

    Raises `ValueError` where a row's length, or that of `align`, is not the number of columns.
    """
    cells = [[str(cell).replace("|", "\\|") for cell in row] for row in rows]
    letters = align or "l" + "r" * (len(columns) - 1)
    for number, row in enumerate(cells):
        if len(row) != len(columns):
            raise ValueError(f"row {number} has {len(row)} cells, the table {len(columns)} columns")
    if len(letters) != len(columns) or set(letters) - set("lrc"):
        raise ValueError(f"align must be {len(columns)} letters of l, r, c; got {letters!r}")
    rule = {"l": ":---", "r": "---:", "c": ":---:"}
    lines = [list(columns), [rule[letter] for letter in letters], *cells]
    markdown = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    from IPython.display import display

    display({"text/markdown": markdown, "text/plain": markdown}, raw=True)
