"""Provenance: from which sources, on which machine and with what a notebook was executed; and whether that is stale.

A notebook is stale when its code cells, its parameters, the scripts that it launches (the folder of its name beside
it), or the package modules that either imports directly from the floors of techniques, instruments and views changed.
Versions of libraries are recorded, not part of the key.
"""

import ast
import datetime
import hashlib
import importlib.metadata
import platform
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from nbformat import NotebookNode

from . import notebook as nb
from .display import METADATA_KEY
from .machine import Machine

PACKAGE = Path(__file__).parent
NAME = __package__ or "efficient_training"

WORDS = frozenset(
    {"demands", "errors", "fields", "formats", "ledger", "machine", "models", "recipe", "units", "workload"}
)
BOOK = frozenset(
    {"book", "cli", "console", "editions", "execute", "host_memory", "kernel", "ledger_output", "nbval_records"}
    | {"notebook", "outputs", "profiling", "progress", "project", "provenance", "recipe_file", "status", "tiers"}
    | {"validation", "yaml_text"}
)
UNHASHED = WORDS | BOOK
"""Modules on which no notebook's staleness depends: floors 0, 4 and 5. Any other module of the package counts."""

VERSIONS = (
    *("torch", "transformers", "numpy", "accelerate", "peft", "deepspeed", "bitsandbytes", "torchao"),
    *("transformer-engine", "flash-attn", "triton", "matplotlib", "papermill", "ipykernel"),
)

State = Literal["fresh", "stale", "missing"]


@dataclass(frozen=True)
class Freshness:
    """Whether an executed notebook belongs to today's sources, and if not, why not."""

    state: State
    reason: str = ""


def source_hash(notebook: NotebookNode, package: Path = PACKAGE, scripts: Path | None = None) -> str:
    """SHA-256, in hexadecimal, of the code cells, the files in `scripts` and the package's `modules` that count."""
    digest = hashlib.sha256()
    for source in nb.code(notebook):
        _add(digest, source)
    files = [(path.relative_to(package).as_posix(), path) for path in modules(notebook, package, scripts)]
    for name, path in [*files, *((path.name, path) for path in _scripts(scripts))]:
        _add(digest, name)
        _add(digest, path.read_text(encoding="utf-8"))
    return digest.hexdigest()


def _scripts(folder: Path | None) -> list[Path]:
    """What a notebook's folder of scripts holds, sorted: their own files, and the configurations beside them."""
    if folder is None or not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))


def _add(digest: Any, text: str) -> None:
    """Length first, so that no two lists of texts give the same bytes."""
    data = text.encode()
    digest.update(f"{len(data)}\n".encode() + data)


def modules(notebook: NotebookNode, package: Path = PACKAGE, scripts: Path | None = None) -> list[Path]:
    """The files of the package modules that the notebook or one of its scripts imports directly and that count, sorted.

    A name that a sub-package offers without being one of its modules (a re-export) stands for all its modules.
    """
    found: set[Path] = set()
    launched = [path.read_text(encoding="utf-8") for path in _scripts(scripts) if path.suffix == ".py"]
    for source in [*nb.code(notebook), *launched]:
        for dotted, names in _imports(source):
            if dotted.split(".")[0] != NAME:
                continue
            inner = dotted.split(".")[1:]
            for name in names or [""]:
                found.update(_files(package, [*inner, name] if name else inner))
    return sorted(found)


def _imports(source: str) -> Iterator[tuple[str, list[str]]]:
    """The absolute imports of a cell: module, and the names taken from it. Lines of magic are passed over."""
    lines = ["pass" if line.startswith(("%", "!")) else line for line in source.splitlines()]
    try:
        tree = ast.parse("\n".join(lines))
    except SyntaxError:
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, []
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module, [alias.name for alias in node.names]


def _files(package: Path, parts: list[str]) -> set[Path]:
    """The files behind `package.parts[0].parts[1]...`, the last of which may be a name inside a module."""
    if not parts or parts[0] in UNHASHED:
        return set()
    folder = package.joinpath(*parts)
    if folder.with_suffix(".py").is_file():
        return {folder.with_suffix(".py")}
    if folder.is_dir():
        return set(folder.rglob("*.py"))
    return _files(package, parts[:-1])


def freshness(
    source: NotebookNode, executed: NotebookNode | None, parameters: Mapping[str, Any], scripts: Path | None = None
) -> Freshness:
    """Compare an executed notebook with today's source of it and with the parameters that it would get today.

    `scripts` is the folder of what it launches (`project.scripts`).
    """
    made = executed.metadata.get(METADATA_KEY) if executed is not None else None
    if executed is None or made is None:
        return Freshness("missing", "not executed yet")
    if dict(made.get("parameters", {})) != dict(parameters):
        names = {**made["parameters"], **parameters}
        changed = [name for name in names if made["parameters"].get(name, ...) != parameters.get(name, ...)]
        return Freshness("stale", f"parameters changed: {', '.join(sorted(changed))}")
    if made.get("source") == source_hash(source, scripts=scripts):
        return Freshness("fresh")
    if source is not executed and nb.code(source) != nb.code(executed):
        return Freshness("stale", "code cells changed")
    files = [".".join(path.relative_to(PACKAGE).with_suffix("").parts) for path in modules(source, scripts=scripts)]
    imported = ", ".join([*files, *(path.name for path in _scripts(scripts))])
    what = "an imported module or a launched script" if _scripts(scripts) else "an imported module"
    if source is executed:
        return Freshness("stale", f"code cells or {what} changed ({imported or 'none imported'})")
    return Freshness("stale", f"{what} changed ({imported or 'one is imported no more'})")


def provenance(
    notebook: NotebookNode,
    *,
    edition: str,
    tier: str,
    parameters: Mapping[str, Any],
    machine: Machine,
    seconds: float,
    commit: tuple[str | None, bool],
    scripts: Path | None = None,
) -> dict[str, Any]:
    """The object of `schema/provenance.schema.json` for a notebook executed just now. It names no host and no path."""
    return {
        "edition": edition,
        "tier": tier,
        "source": source_hash(notebook, scripts=scripts),
        "parameters": dict(parameters),
        "commit": commit[0],
        "dirty": commit[1],
        "machine": machine.to_json(),
        "versions": versions(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "seconds": round(seconds, 1),
    }


def versions() -> dict[str, str]:
    """Versions of Python, of this package, and of those libraries that are installed."""
    found = {"python": platform.python_version()}
    for name in (NAME.replace("_", "-"), *VERSIONS):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def commit(root: Path) -> tuple[str | None, bool]:
    """The commit at which `root` stands, and whether what a run reads differs from it: `src/` and notebooks' sources.

    Outputs of `notebooks/` do not count. Without git, or before the first commit: `(None, False)`.
    """
    head = _git(root, "rev-parse", "HEAD").strip()
    if not head:
        return None, False
    # From `-z`, so that no name is quoted; the second half of a rename has no state, and is passed over.
    changed = _git(root, "status", "--porcelain", "-z", "--no-renames", "--", "src", "notebooks").split("\0")
    return head, any(_counts(root, entry[3:]) for entry in changed if entry)


def _counts(root: Path, path: str) -> bool:
    if not path.endswith(".ipynb"):
        return True
    try:
        here = nb.read(root / path)
        before = nb.loads(_git(root, "show", f"HEAD:{path}"))
    except Exception:
        return True
    return _sources(here) != _sources(before)


def _sources(notebook: NotebookNode) -> list[tuple[str, str, list[str]]]:
    return [(cell.cell_type, cell.source, cell.metadata.get("tags", [])) for cell in notebook.cells]


def _git(root: Path, *arguments: str) -> str:
    """What git prints; nothing where it fails or is not there."""
    try:
        run = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return run.stdout.decode(errors="replace")
