"""The project's places: its root, its notebooks, its editions, and the names by which a user calls them."""

import platform
import re
import tomllib
from collections.abc import Iterable
from pathlib import Path

from .errors import UserError

PROJECT = "efficient-training"
REFERENCE = "reference"
"""The name of the edition whose notebooks stand in `notebooks/`."""

EDITION = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
STEM = re.compile(r"(\d\d)-([a-z0-9]+(?:-[a-z0-9]+)*)")


def find_root(start: Path) -> Path:
    """The project's root: `start` or the nearest folder above it; raises `UserError` where there is none."""
    start = start.resolve()
    for folder in (start, *start.parents):
        if _is_root(folder):
            return folder
    raise UserError(f"{start}: not inside the {PROJECT} project; change to a folder of your clone of it")


def _is_root(folder: Path) -> bool:
    """A clone has a pyproject.toml of this name, and a source archive of the book at least its Quarto project."""
    try:
        project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8")).get("project", {})
        if project.get("name") == PROJECT:
            return True
    except (OSError, ValueError):
        pass
    return (folder / "_quarto.yml").is_file() and (folder / "environments").is_dir()


def read_text(path: Path) -> str:
    """The text of a source at `path`; raises `UserError` where it is not UTF-8, `OSError` where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text (byte {error.start}); save it as UTF-8") from None


def notebooks(root: Path) -> dict[str, Path]:
    """The project's notebooks by name (`03-checkpointing`), in order; raises `UserError` on a badly named file."""
    found: dict[str, Path] = {}
    for path in sorted((root / "notebooks").glob("*.ipynb")):
        match = STEM.fullmatch(path.stem)
        if match is None:
            raise UserError(f"notebooks/{path.name}: a notebook is called NN-slug.ipynb (03-checkpointing); rename it")
        other = next((name for name in found if name[:2] == match[1]), None)
        if other:
            raise UserError(f"notebooks/{path.name}: the number {match[1]} is also that of {other}; renumber one")
        found[path.stem] = path
    return found


def scripts(root: Path, name: str) -> Path:
    """The folder of the scripts that the notebook `name` launches: that of its name beside it, where there are any."""
    return root / "notebooks" / name


def select(names: Iterable[str], wanted: Iterable[str]) -> list[str]:
    """Those of `names` that the user asked for, in the order of `names`; all of them where nothing was asked for.

    A notebook is called by its number (3, 03), its slug (checkpointing), its name (03-checkpointing, also with its
    folder and `.ipynb`), or the beginning of either. Raises `UserError` on a word that calls none or several.
    """
    names, wanted = list(names), list(wanted)
    if not wanted:
        return names
    chosen = {_one(names, word) for word in wanted}
    return [name for name in names if name in chosen]


def _one(names: list[str], word: str) -> str:
    key = word.removesuffix(".ipynb").rpartition("/")[2].rstrip(".…").lower()
    key = key.zfill(2) if key.isdigit() else key
    exact = [name for name in names if key in (name, name[:2], name[3:])]
    hits = exact or [name for name in names if key and (name.startswith(key) or name[3:].startswith(key))]
    if len(hits) == 1:
        return hits[0]
    known = ", ".join(hits or names) or "none yet"
    raise UserError(f"--notebook {word}: {'calls several notebooks' if hits else 'no such notebook'}; known: {known}")


def check_edition_name(name: str) -> str:
    """`name`, where it may name an edition; raises `UserError` otherwise."""
    if not EDITION.fullmatch(name):
        raise UserError(
            f"--edition {name!r}: an edition's name has up to 64 of a-z, 0-9, dot, dash and underscore, "
            "and starts with a letter or digit; choose such a name"
        )
    return name


def default_edition_name(tier: str) -> str:
    """The name of this machine's edition: host and tier, in the characters that a name may have."""
    host = re.sub(r"[^a-z0-9]+", "-", platform.node().split(".")[0].lower()).strip("-") or "machine"
    return f"{host[: 63 - len(tier)]}-{tier}"


def edition_folder(root: Path, edition: str) -> Path:
    """Where the executed notebooks of `edition` stand."""
    return root / "notebooks" if edition == REFERENCE else root / "results" / check_edition_name(edition)


def state_folder(root: Path, edition: str) -> Path:
    """Where the log and the lock of runs into `edition` stand; git ignores them."""
    return root / "results" / check_edition_name(edition)
