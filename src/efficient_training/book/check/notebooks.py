"""The executed notebooks: clean, fresh, valid, and without an everywhere-claim that did not hold."""

import json
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...claims import Claim
from ...editions import REFERENCE, load_json, read_results
from ...errors import UserError
from ...records import Record
from .problems import Problem

MACHINE_PATH = re.compile(
    r"(?<![\w./:-])/(?:home|Users|root|tmp|work|workspace|private|mnt|srv|opt|usr/local|var/folders)/[\w.-]+"
    r"|\b[A-Za-z]:\\+Users\\"
)
TIMING_KEYS = {"execution", "ExecuteTime", "papermill", "jupyter_execution", "collapsed"}


@dataclass
class Results:
    """What all notebooks say, by name, and what is wrong with them."""

    records: dict[str, Record] = field(default_factory=dict)
    claims: dict[str, Claim] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)


def check_notebooks(root: Path, folder: Path, edition: str) -> Results:
    """Read the notebooks of an edition, which stand in `folder`."""
    found = Results()
    owner: dict[str, Path] = {}
    for path in sorted(folder.glob("*.ipynb")):
        name = path.relative_to(root)
        try:
            notebook = load_json(path)
            result = read_results(name, notebook)
        except UserError as error:
            message = str(error).removeprefix(f"{path}: ").removeprefix(f"{name}: ") + "; execute the notebook again"
            found.problems.append(Problem(name, 1, message))
            continue
        text = path.read_text(encoding="utf-8")
        found.problems += [Problem(name, line, message) for line, message in _hygiene(notebook, text, edition)]
        for figure in [*result.records, *result.claims]:
            if figure in owner:
                message = f"the name {figure} is also used in {owner[figure].name}; a name stands for one figure"
                found.problems.append(Problem(name, _line(text, figure), message))
            owner[figure] = name
        for claim in result.claims.values():
            if claim.scope == "everywhere" and claim.held is False:
                message = f"the everywhere-claim {claim.name} was not held: {claim.evidence}"
                found.problems.append(Problem(name, _line(text, claim.name), message))
        found.records.update(result.records)
        found.claims.update(result.claims)
        if edition == REFERENCE:
            found.problems += _freshness(path, name)
    return found


def _line(text: str, words: str) -> int:
    return text.count("\n", 0, max(text.find(json.dumps(words)), 0)) + 1


def _hygiene(notebook: Mapping[str, Any], text: str, edition: str) -> Iterator[tuple[int, str]]:
    """Line and message of what must not be committed."""
    metadata = notebook.get("metadata", {})
    if metadata.get("kernelspec", {}).get("name") != "python3":
        yield 1, "the kernelspec is missing or not python3; execute the notebook with the runner"
    for key in sorted(TIMING_KEYS & set(metadata)):
        yield _line(text, key), f"the metadata hold {key}, which differs from run to run; clean the notebook"
    cells = notebook["cells"]
    if timed := [number for number, cell in enumerate(cells, start=1) if TIMING_KEYS & set(cell.get("metadata", {}))]:
        keys = sorted(set().union(*(TIMING_KEYS & set(cells[number - 1]["metadata"]) for number in timed)))
        where = f"the metadata of {len(timed)} of {len(cells)} cells"
        message = f"{where} hold {', '.join(keys)}, which differ from run to run; clean the notebook"
        yield _line(text, cells[timed[0] - 1].get("id", "")), message
    tags = [tag for cell in cells for tag in cell.get("metadata", {}).get("tags", ())]
    if "parameters" not in tags:
        yield 1, "no cell is tagged parameters; papermill would silently ignore a tier's parameters"
    if edition == REFERENCE and "injected-parameters" in tags:
        yield 1, "a cell with injected parameters stands in the reference edition; run `make reference`"
    for number, cell in enumerate(cells, start=1):
        line = _line(text, cell["id"]) if cell.get("id") else 1
        if not cell.get("id"):
            yield line, f"cell {number} has no id; save the notebook in format 4.5"
        for output in cell.get("outputs") or ():
            if output.get("output_type") == "error":
                yield line, f"cell {number} ended in {output.get('ename')}; mend it and execute the notebook again"
            if output.get("name") == "stderr" and edition == REFERENCE:
                yield line, f"cell {number} writes to stderr; silence or mend its cause"
        if path := next((match[0] for string in _strings(cell) if (match := MACHINE_PATH.search(string))), None):
            yield line, f"cell {number} names a path of one machine ({path}); keep paths out of sources and outputs"


def _strings(node: Any) -> Iterator[str]:
    if isinstance(node, str):
        yield node
    elif isinstance(node, list):
        yield from (part for item in node for part in _strings(item))
    elif isinstance(node, dict):
        yield from (part for key, item in node.items() if not key.startswith("image/") for part in _strings(item))


def _freshness(path: Path, name: Path) -> Iterator[Problem]:
    from ... import notebook, provenance

    try:
        with warnings.catch_warnings(action="ignore"):  # of nbformat, about what is a problem of its own here
            made = notebook.read(path)
        state = provenance.freshness(made, made, {}, path.with_suffix(""))
    except UserError as error:
        yield Problem(name, 1, str(error).removeprefix(f"{path}: "))
        return
    if state.state != "fresh":
        yield Problem(name, 1, f"{state.state}: {state.reason}; run `make reference NOTEBOOK={path.stem}`")
