"""What stands around the text of a page: titles, sidebar, previous and next, footer."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from .project import Page, Project


def variables(project: Project, number: int, found: Sequence[Mapping[str, Any]], footer: str) -> dict[str, Any]:
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
        "home": home,
        "kind": _kind(page),
        "root": page.to_root,
        "sections": bool(found[number]["sections"]),
        "math": bool(found[number]["math"]),
        "parts": _parts(project, number, found),
        "previous": _neighbor(project, number, found, -1),
        "next": _neighbor(project, number, found, 1),
        "edition": escape(found[number]["edition"]),
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
