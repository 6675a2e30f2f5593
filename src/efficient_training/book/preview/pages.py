"""What stands around the text of a page: titles, sidebar, previous and next, footer, the edition."""

import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from ...editions import REFERENCE, read_notebook
from .project import Page, Project


def variables(
    project: Project, number: int, found: Sequence[Mapping[str, Any]], edition: str, footer: str
) -> dict[str, Any]:
    """The variables of theme/page.html for page `number`; strings are HTML, so they are escaped here.

    `found` is what number.lua reports of each page; `footer` is HTML.
    """
    page = project.pages[number]
    title = escape(found[number]["title"])
    book = escape(project.title)
    home = number == 0
    return {
        "pagetitle": book if home else f"{title} – {book}",
        "booktitle": book,
        "subtitle": escape(project.subtitle),
        "home": home,
        "kind": _kind(page),
        "root": page.to_root,
        "sections": bool(found[number]["sections"]),
        "math": bool(found[number]["math"]),
        "parts": _parts(project, number, found),
        "previous": _neighbor(project, number, found, -1),
        "next": _neighbor(project, number, found, 1),
        "edition": escape(edition),
        "footer": footer,
        "repository": escape(project.repository) if project.repository else False,
        "author": escape(project.author) if project.author else False,
    }


def _kind(page: Page) -> str:
    if not page.number:
        return "plain"
    return "appendix" if page.appendix else "chapter"


def _parts(project: Project, number: int, found: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The sidebar: pages grouped by part, in order."""
    parts: list[dict[str, Any]] = []
    here = project.pages[number]
    for index, page in enumerate(project.pages):
        if not parts or parts[-1]["key"] != (page.part or ""):
            parts.append({"key": page.part or "", "name": escape(page.part or ""), "pages": []})
        parts[-1]["pages"].append({**_link(here, page, found[index]["title"]), "current": index == number})
    return parts


def _neighbor(project: Project, number: int, found: Sequence[Mapping[str, Any]], step: int) -> dict[str, Any] | bool:
    place = number + step
    if not 0 <= place < len(project.pages):
        return False
    return _link(project.pages[number], project.pages[place], found[place]["title"])


def _link(here: Page, page: Page, title: str) -> dict[str, str]:
    return {"href": here.to_root + page.href, "number": page.number, "title": escape(title)}


def edition_line(root: Path) -> str:
    """Whose edition the pages show, on one line: its name, machine, versions and date, from the provenance."""
    edition, borrowed = _edition(root)
    made = [
        result.provenance
        for path in sorted((root / "notebooks").glob("*.ipynb"))
        if path.stem not in borrowed and (result := read_notebook(path)).provenance is not None
    ]
    name = "Reference edition" if edition == REFERENCE else f"Edition {edition}"
    if not made:
        return f"{name}: its notebooks have no machine on record."
    latest = max(made, key=lambda provenance: str(provenance["date"]))
    machines = list(dict.fromkeys(_machine(provenance["machine"]) for provenance in made))
    versions = ", ".join(f"{package} {version}" for package, version in sorted(latest["versions"].items()))
    return f"{name}: {'; '.join(machines)}; {versions}; {latest['date']}."


def _edition(root: Path) -> tuple[str, set[str]]:
    """The edition's name, and the notebooks that it has borrowed from the reference edition."""
    path = root / "edition.json"
    if not path.exists():
        return REFERENCE, set()
    data = json.loads(path.read_text(encoding="utf-8"))
    return str(data["edition"]), set(data.get("borrowed") or ())


def _machine(machine: Mapping[str, Any]) -> str:
    """ "2 × NVIDIA H200 (140 GiB); AMD EPYC, 16 cores, 128 GiB of memory; Linux"."""
    gpus = [f"{gpu['name']} ({_gib(gpu['memory_bytes'])})" for gpu in machine["gpus"]]
    parts = [f"{gpus.count(gpu)} × {gpu}" if gpus.count(gpu) > 1 else gpu for gpu in dict.fromkeys(gpus)]
    cores = f"{machine['cores']} {'core' if machine['cores'] == 1 else 'cores'}"
    memory = f", {_gib(machine['memory_bytes'])} of memory" if machine["memory_bytes"] else ""
    return ", ".join([*parts, f"{machine['cpu']} with {cores}{memory}", machine["system"]])


def _gib(size: int) -> str:
    return f"{size / 2**30:.0f} GiB"
