"""The assembly of an edition: the book's sources with another machine's results in place of the reference's.

`_build/<edition>/` is a Quarto project of its own:

    chapters/ index.qmd _quarto.yml _extensions/ assets/   copies of the sources
    notebooks/     the reference's cells with the edition's outputs; the reference's notebook where it has none
    reference/     the reference edition's notebooks, from which the filter borrows what the edition lacks
    edition.json   {"edition": name, "borrowed": [notebooks], "stale": [notebooks]}

The sources are only read. The folder is built aside and put in place at the end, so no file of an earlier one stays.
"""

import copy
import json
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from .. import project
from ..display import METADATA_KEY
from ..editions import REFERENCE, load_edition, load_json
from ..outputs import joined
from ..status import status

SOURCES = ("chapters", "assets", "_extensions", "_quarto.yml", "*.qmd")
LEFT_OUT = shutil.ignore_patterns(".*", "__pycache__", "*_files", "*.html")
BREAK = "\u200b"
BORROWED = "(from the reference edition)"


def assemble(root: Path, edition: str) -> Path:
    """Make `_build/<edition>/` anew and return it; for the reference edition, `root` itself, which needs no assembly.

    Raises `UserError` where there is no such edition, or one of its notebooks does not pass validation.
    """
    if edition == REFERENCE:
        return root
    theirs = {name: result.path for name, result in load_edition(root, edition).notebooks.items()}
    stale = [name for name, found in status(root, edition).items() if found.state == "stale"]
    ours = project.notebooks(root)
    build = root / "_build"
    build.mkdir(exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=f".{edition}-", dir=build))
    try:
        _fill(root, aside / "book", ours, theirs)
        info = {"edition": edition, "borrowed": [name for name in ours if name not in theirs], "stale": stale}
        (aside / "book" / "edition.json").write_text(json.dumps(info, indent=1) + "\n", encoding="utf-8")
        return _put(aside / "book", build / edition, aside / "last")
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _fill(root: Path, fresh: Path, ours: Mapping[str, Path], theirs: Mapping[str, Path]) -> None:
    fresh.mkdir()
    for source in _sources(root):
        if source.is_dir():
            shutil.copytree(source, fresh / source.name, ignore=LEFT_OUT)
        else:
            shutil.copyfile(source, fresh / source.name)
    for folder in ("notebooks", "reference"):
        (fresh / folder).mkdir()
    for name, path in ours.items():
        reference = load_json(path)
        shutil.copyfile(path, fresh / "reference" / path.name)
        made = merge(reference, load_json(theirs[name])) if name in theirs else borrow(reference)
        (fresh / "notebooks" / path.name).write_text(json.dumps(made, indent=1, ensure_ascii=False), encoding="utf-8")


def _sources(root: Path) -> Iterator[Path]:
    for pattern in SOURCES:
        yield from sorted(root.glob(pattern))


def _put(fresh: Path, place: Path, last: Path) -> Path:
    """Put `fresh` where `place` is: two renames within one file system."""
    if place.exists():
        place.rename(last)
    try:
        fresh.rename(place)
    except OSError:
        if last.exists():
            last.rename(place)
        raise
    return place


def merge(reference: Mapping[str, Any], executed: Mapping[str, Any]) -> dict[str, Any]:
    """The reference's cells with the outputs that the cells of the same id have in the edition.

    A cell that the edition did not run (it was added later) keeps the reference's picture or table, marked as borrowed
    in its caption and without records, which the filter then borrows itself.
    """
    made = copy.deepcopy(dict(reference))
    outputs = {cell.get("id"): cell.get("outputs") for cell in executed["cells"] if cell.get("cell_type") == "code"}
    for cell in made["cells"]:
        if cell["cell_type"] != "code":
            continue
        if cell.get("id") in outputs:
            cell["outputs"] = [taken(output) for output in outputs[cell["id"]] if output.get("name") != "stderr"]
        else:
            cell["source"] = mark_caption(joined(cell["source"]))
            for output in cell["outputs"]:
                output.get("metadata", {}).pop(METADATA_KEY, None)
    made["metadata"] = {**made["metadata"]}
    made["metadata"].pop(METADATA_KEY, None)
    if provenance := executed["metadata"].get(METADATA_KEY):
        made["metadata"][METADATA_KEY] = provenance
    return made


def taken(output: Mapping[str, Any]) -> dict[str, Any]:
    """A validated output, its plain text unable to end the code block around it or to call a shortcode."""
    made = copy.deepcopy(dict(output))
    if "text" in made:
        made["text"] = inert(joined(made["text"]))
    if "text/plain" in made.get("data", ()):
        made["data"]["text/plain"] = inert(joined(made["data"]["text/plain"]))
    return made


def inert(text: str) -> str:
    """`text` with an invisible break in whatever Quarto or Markdown would read as more than text."""
    for mark in ("```", "~~~", "{{<"):
        text = text.replace(mark, BREAK.join(mark))
    return text


def borrow(reference: Mapping[str, Any]) -> dict[str, Any]:
    """The reference's notebook with a word in each caption that says so."""
    made = copy.deepcopy(dict(reference))
    for cell in made["cells"]:
        if cell["cell_type"] == "code":
            cell["source"] = mark_caption(joined(cell["source"]))
    return made


CAPTION = re.compile(r"^#\| (?P<key>fig-cap|tbl-cap):(?P<value>.*(?:\n#\|  .*)*)$", re.MULTILINE)


def mark_caption(source: str) -> str:
    """A cell's source with the mark of what is borrowed at the end of its caption, where it has one."""

    def marked(match: re.Match[str]) -> str:
        caption = yaml.safe_load(re.sub(r"^#\| ", "", match[0], flags=re.MULTILINE))[match["key"]]
        return f"#| {match['key']}: {json.dumps(f'{caption} {BORROWED}', ensure_ascii=False)}"

    return CAPTION.sub(marked, source)
