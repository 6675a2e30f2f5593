"""Notebooks as files: reading, cleaning of what belongs to one run only, and writing in one step.

`python -m efficient_training.notebook FILE...` cleans files in place, and exits with 1 where it changed one.
"""

import ast
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode

from .display import METADATA_KEY
from .errors import UserError

INJECTED = "injected-parameters"
"""The tag of the cell in which papermill puts the tier's parameters."""

MIME_TYPES = ("text/plain", "text/markdown", "image/png")
"""What an output may hold; the rest of its representations is for other front ends."""

COLORS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")

KERNELSPEC = {"display_name": "Python 3", "language": "python", "name": "python3"}
LANGUAGE = {"name": "python"}


def read(path: Path) -> NotebookNode:
    """The notebook at `path`; raises `UserError` where there is none, or the file is no notebook."""
    try:
        return loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: no such notebook") from None
    except (OSError, ValueError, nbformat.ValidationError, RecursionError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise UserError(f"{path}: not a valid notebook ({reason}); mend it or take it from git") from None


def loads(text: str) -> NotebookNode:
    """The notebook of a file's text; raises `ValueError` or `nbformat.ValidationError` where it is none."""
    try:
        notebook: NotebookNode = nbformat.reads(text, as_version=4)
    except (AttributeError, KeyError, TypeError):
        raise ValueError("not a notebook's JSON") from None
    nbformat.validate(notebook)
    return notebook


def clean(notebook: NotebookNode) -> None:
    """Take out, in place, what differs from run to run or names this machine, so that equal runs give equal files.

    Kept: sources, tags, this package's own metadata, and of the outputs what a page can show. Execution counts become
    1, 2, 3... over the cells that were executed (nbval takes a cell without one for never executed). Gone: timings,
    papermill's notes (paths and times), versions of the kernel, widgets, HTML, and terminal colors.
    """
    own = notebook.metadata.get(METADATA_KEY)
    notebook.metadata = NotebookNode(kernelspec=dict(KERNELSPEC), language_info=dict(LANGUAGE))
    if own is not None:
        notebook.metadata[METADATA_KEY] = own
    executed = 0
    for cell in notebook.cells:
        tags = cell.metadata.get("tags")
        cell.metadata = NotebookNode(tags=tags) if tags else NotebookNode()
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if _clean_output(output)]
            if cell.execution_count is not None or cell.outputs:
                executed += 1
                cell.execution_count = executed


def _clean_output(output: NotebookNode) -> bool:
    """Clean one output in place; False where nothing of it is left."""
    if output.output_type == "stream":
        output.text = COLORS.sub("", output.text)
    if output.output_type not in ("display_data", "execute_result"):
        return True
    if output.output_type == "execute_result":
        output.execution_count = None
    output.metadata = NotebookNode({key: value for key, value in output.metadata.items() if key == METADATA_KEY})
    output.data = NotebookNode({kind: data for kind, data in output.data.items() if kind in MIME_TYPES})
    return bool(output.data)


def dumps(notebook: NotebookNode) -> str:
    """The text of the file: sorted keys, indent 1, lines of sources apart, a newline at the end."""
    return str(nbformat.writes(notebook, version=nbformat.NO_CONVERT)).rstrip("\n") + "\n"


def write(notebook: NotebookNode, path: Path) -> None:
    """Write `notebook` to `path` in one step: whoever reads, or kills this process, finds the old or the new file.

    Raises `OSError` with the file's name, which writing to a full disk leaves out.
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(dumps(notebook))
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise OSError(error.errno, error.strerror, str(path)) from None
        raise


def remove_leftovers(folder: Path) -> None:
    """Remove what a killed `write` has left in `folder`."""
    for path in folder.glob(".*.ipynb.*.tmp"):
        path.unlink(missing_ok=True)


def code(notebook: NotebookNode) -> list[str]:
    """The sources of the code cells, without the one that papermill injected."""
    return [
        cell.source
        for cell in notebook.cells
        if cell.cell_type == "code" and INJECTED not in cell.metadata.get("tags", ())
    ]


def label(cell: NotebookNode) -> str:
    """How a message names a cell: its Quarto label, else its id."""
    for line in cell.source.splitlines():
        if line.startswith("#| label:"):
            return str(line.partition(":")[2].strip())
    return str(cell.get("id", "without id"))


def output_text(output: NotebookNode) -> str:
    """All text that an output shows: of its stream or error, and of its textual MIME types."""
    texts = [output.get("text", ""), *output.get("traceback", ())]
    texts += [data for kind, data in output.get("data", {}).items() if kind.startswith("text/")]
    return "\n".join(str(text) for text in texts)


def warnings(notebook: NotebookNode) -> Iterator[tuple[str, str]]:
    """The cells that wrote to stderr: label, and the first line."""
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            if output.get("name") == "stderr":
                yield label(cell), output.text.strip().partition("\n")[0]


def parameters(notebook: NotebookNode) -> dict[str, Any]:
    """The names that the cell tagged `parameters` assigns, with their default, or `...` where it is no literal.

    Raises `UserError` where that cell is no Python.
    """
    found: dict[str, Any] = {}
    for cell in notebook.cells:
        if cell.cell_type == "code" and "parameters" in cell.metadata.get("tags", ()):
            for name, value in _assignments(cell.source):
                try:
                    found[name] = ast.literal_eval(value)
                except ValueError:
                    found[name] = ...
            break
    return found


def _assignments(source: str) -> Iterator[tuple[str, ast.expr]]:
    try:
        body = ast.parse(source).body
    except SyntaxError as error:
        raise UserError(f"the parameters cell is not valid Python, line {error.lineno}: {error.msg}") from None
    for statement in body:
        if isinstance(statement, ast.Assign):
            targets, value = statement.targets, statement.value
        elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
            targets, value = [statement.target], statement.value
        else:
            continue
        for target in targets:
            if isinstance(target, ast.Name):
                yield target.id, value


def main(names: Sequence[str]) -> int:
    """Clean the notebooks called `names` in place; returns 1 where one was changed, 2 where one cannot be read."""
    changed = 0
    for path in map(Path, names):
        try:
            notebook = read(path)
        except UserError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        clean(notebook)
        if dumps(notebook) != path.read_text(encoding="utf-8"):
            write(notebook, path)
            print(f"{path}: cleaned")
            changed = 1
    return changed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
