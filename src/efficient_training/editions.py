"""Editions: executed notebooks of one machine, read and validated.

An edition may come from somebody else. So a notebook is validated before anything in it is used: its records, claims
and provenance by JSON Schema, its outputs by type. Nothing in it is executed.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .claims import Claim
from .display import METADATA_KEY
from .errors import UserError
from .project import REFERENCE as REFERENCE
from .records import Record
from .validation import validate


@dataclass(frozen=True)
class NotebookResult:
    """What one executed notebook says: `provenance` is `None` where it was never executed by the runner."""

    path: Path
    records: Mapping[str, Record]
    claims: Mapping[str, Claim]
    provenance: Mapping[str, Any] | None


@dataclass
class Results:
    """Records and claims being gathered from one notebook's outputs, each checked against its schema."""

    where: str
    records: dict[str, Record] = field(default_factory=dict)
    claims: dict[str, Claim] = field(default_factory=dict)

    def add(self, data: object) -> None:
        """Take the JSON found in one output's metadata; raises `UserError` where it is no record and no claim."""
        kind = data.get("type") if isinstance(data, dict) else None
        if kind not in ("record", "claim"):
            raise UserError(f"{self.where}: an output carries {kind!r}, expected a record or a claim")
        assert isinstance(data, dict)
        validate(data, kind, self.where)
        name = data["name"]
        if name in self.records or name in self.claims:
            raise UserError(f"{self.where}: the name {name!r} stands for two figures; rename one of them")
        try:
            if kind == "record":
                self.records[name] = Record.from_json(data)
            else:
                self.claims[name] = Claim.from_json(data)
        except (ValueError, TypeError) as error:
            raise UserError(f"{self.where}: {error}") from None


def read_notebook(path: Path) -> NotebookResult:
    """Read and validate the executed notebook at `path`; raises `UserError` with what is wrong and where."""
    return read_results(path, load_json(path))


def read_results(path: Path, notebook: Mapping[str, Any]) -> NotebookResult:
    """What `notebook`, executed and standing (or about to) at `path`, says; raises `UserError` as `read_notebook`."""
    results = Results(str(path))
    for data in output_data(notebook):
        results.add(data)
    provenance = notebook.get("metadata", {}).get(METADATA_KEY)
    if provenance is not None:
        validate(provenance, "provenance", str(path))
    return NotebookResult(path, results.records, results.claims, provenance)


def load_json(path: Path) -> dict[str, Any]:
    """The notebook's JSON; raises `UserError` where the file is missing, or is no notebook of format 4."""
    try:
        notebook = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: no such notebook") from None
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"{path}: not a notebook ({error})") from None
    if not isinstance(notebook, dict) or notebook.get("nbformat") != 4 or not isinstance(notebook.get("cells"), list):
        raise UserError(f"{path}: not a notebook of format 4")
    return notebook


def output_data(notebook: Mapping[str, Any]) -> Iterator[object]:
    """The JSON that this package's outputs carry, in the order of the cells."""
    for cell in notebook["cells"]:
        for output in cell.get("outputs", ()):
            if METADATA_KEY in (output.get("metadata") or {}):
                yield output["metadata"][METADATA_KEY]
