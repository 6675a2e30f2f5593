"""Editions: executed notebooks of one machine, read and validated.

An edition may come from somebody else. So a notebook is validated before anything in it is used: its size, its records,
claims and provenance by JSON Schema, its outputs by what they may hold. Nothing in it is executed.
"""

import json
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .claims import Claim
from .display import METADATA_KEY
from .errors import UserError
from .outputs import check_notebook
from .project import EDITION, edition_folder, notebooks
from .project import REFERENCE as REFERENCE
from .records import Record
from .validation import validate

MAX_BYTES = 50 * 2**20
"""Of one executed notebook."""
MAX_DEPTH = 50
"""Of its JSON; a record's conditions, the deepest of it, stand at ten."""


@dataclass(frozen=True)
class NotebookResult:
    """What one executed notebook says: `provenance` is `None` where it was never executed by the runner."""

    path: Path
    records: Mapping[str, Record]
    claims: Mapping[str, Claim]
    provenance: Mapping[str, Any] | None


@dataclass(frozen=True)
class Edition:
    """An edition that has passed validation: its notebooks by name, those that were executed."""

    name: str
    folder: Path
    notebooks: Mapping[str, NotebookResult]
    unknown: tuple[str, ...] = ()
    """Files of the edition that are no notebook of the book; they have not been read."""

    @property
    def records(self) -> dict[str, Record]:
        """All records by name; names are unique over the whole book."""
        return {name: item for result in self.notebooks.values() for name, item in result.records.items()}

    @property
    def claims(self) -> dict[str, Claim]:
        """All claims by name."""
        return {name: item for result in self.notebooks.values() for name, item in result.claims.items()}

    @property
    def homes(self) -> dict[str, str]:
        """The notebook that each record and claim stands in."""
        return {
            name: notebook for notebook, result in self.notebooks.items() for name in (*result.records, *result.claims)
        }


def load_edition(root: Path, name: str) -> Edition:
    """Read and validate the edition `name`: the reference from `notebooks/`, others from `results/<name>/`.

    Raises `UserError` with the file and the place of the first fault, and where there is no such edition.
    """
    folder = edition_folder(root, name)
    if not folder.is_dir() or folder.is_symlink():
        known = ", ".join(edition_names(root))
        raise UserError(f"results/{name}: no such edition; known: {known}; `make run EDITION={name}` makes it")
    book = notebooks(root)
    found: dict[str, NotebookResult] = {}
    homes: dict[str, Path] = {}
    for stem in book:
        path = folder / f"{stem}.ipynb"
        if not path.exists() and not path.is_symlink():
            continue
        result = load_notebook(path, name)
        if result is None:
            continue
        for key in (*result.records, *result.claims):
            if key in homes:
                raise UserError(
                    f"{path}: the name {key!r} stands in {homes[key].name} too; a name stands for one figure"
                )
            homes[key] = path
        found[stem] = result
    unknown = tuple(sorted(path.name for path in folder.glob("*.ipynb") if path.stem not in book))
    return Edition(name, folder, found, unknown)


def load_notebook(path: Path, edition: str) -> NotebookResult | None:
    """Read and validate one notebook of an edition, outputs included; raises `UserError`.

    `None` for a notebook of the reference that the runner has not executed yet, whatever it holds.
    """
    data = load_json(path)
    if edition == REFERENCE and METADATA_KEY not in data["metadata"]:
        return None
    check_notebook(data, str(path))
    result = read_results(path, data)
    if result.provenance is None:
        raise UserError(f"{path}: has no provenance; only what `efficient-training execute` made is an edition")
    if result.provenance["edition"] != edition:
        made_as = result.provenance["edition"]
        raise UserError(f"{path}: says that it belongs to the edition {made_as!r}; put it into results/{made_as}")
    for claim in result.claims.values():
        lost = next((record for record in claim.records if record not in result.records), None)
        if lost:
            raise UserError(f"{path}: the claim {claim.name} rests on {lost!r}, which is no record there")
    return result


def edition_names(root: Path) -> list[str]:
    """The reference edition, and each folder of `results/` that may be one: well named, with a notebook in it."""
    folders = sorted(path for path in (root / "results").glob("*") if path.is_dir() and not path.is_symlink())
    folders = [path for path in folders if any(path.glob("*.ipynb"))]
    return [REFERENCE, *(path.name for path in folders if path.name != REFERENCE and EDITION.fullmatch(path.name))]


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
        except (ValueError, TypeError, OverflowError) as error:
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
    """The notebook's JSON; raises `UserError` where the file is missing, too large, or no notebook of format 4.

    Stricter than `json.loads`: no NaN or infinity, and no key twice, of which other readers might take the other.
    """
    try:
        # Reading from a pipe would wait for ever.
        if path.is_symlink() or not stat.S_ISREG(path.stat().st_mode) or path.stat().st_size > MAX_BYTES:
            size = f"{MAX_BYTES // 2**20} MiB"
            raise UserError(f"{path}: a link, no plain file, or larger than {size}; an edition may not hold it")
        notebook = json.loads(
            path.read_text(encoding="utf-8"), object_pairs_hook=_unique, parse_constant=_refuse_constant
        )
    except FileNotFoundError:
        raise UserError(f"{path}: no such notebook") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path}: not a notebook ({str(error)[:200]})") from None
    if (
        not isinstance(notebook, dict)
        or notebook.get("nbformat") != 4
        or not isinstance(notebook.get("nbformat_minor"), int)
        or not isinstance(notebook.get("metadata"), dict)
        or not isinstance(notebook.get("cells"), list)
        or not all(isinstance(cell, dict) for cell in notebook["cells"])
    ):
        raise UserError(f"{path}: not a notebook of format 4")
    if _deeper(notebook, MAX_DEPTH):
        raise UserError(f"{path}: lists and objects nested deeper than {MAX_DEPTH}; an edition may not hold it")
    return notebook


def _deeper(value: object, depth: int) -> bool:
    """Whether `value` nests deeper than `depth`, which whoever walks it by recursion relies on; without recursion."""
    level = [value]
    while level and depth >= 0:
        level = [
            inner
            for item in level
            if isinstance(item, dict | list)
            for inner in (item.values() if isinstance(item, dict) else item)
        ]
        depth -= 1
    return bool(level)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {next(key for key in keys if keys.count(key) > 1)[:60]!r} is written twice")
    return made


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is no JSON")


def output_data(notebook: Mapping[str, Any]) -> Iterator[object]:
    """The JSON that this package's outputs carry, in the order of the cells."""
    for cell in notebook["cells"]:
        for output in cell.get("outputs") or ():
            metadata = output.get("metadata") if isinstance(output, dict) else None
            if isinstance(metadata, dict) and METADATA_KEY in metadata:
                yield metadata[METADATA_KEY]
