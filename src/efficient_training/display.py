"""What a notebook cell shows: text with data behind it, and tables."""

import ast
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
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


def source(path: str | Path, name: str | None = None) -> None:
    """Display a script, or one function or class at its top level, as a block of code (YAML where its name says so).

    Raises `ValueError` where the script has no such name.
    """
    path = Path(path)
    text = path.read_text(encoding="utf-8")
    if name is not None:
        found = next((node for node in ast.parse(text).body if getattr(node, "name", None) == name), None)
        if found is None:
            raise ValueError(f"{path}: no function or class {name!r} at the top level")
        first = min([found.lineno, *(decorator.lineno for decorator in getattr(found, "decorator_list", ()))])
        text = "\n".join(text.splitlines()[first - 1 : found.end_lineno])
    language = "yaml" if path.suffix in (".yaml", ".yml") else "python"
    from IPython.display import display

    display({"text/markdown": f"```{language}\n{text.strip()}\n```", "text/plain": text.strip()}, raw=True)
