"""The whole preview: every page twice through pandoc, written aside, then put in place of the last one at once."""

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import track

from . import pandoc
from .cells import Problems, expand_embeds, forget_notebooks
from .pages import variables
from .project import Page, Project, read_project
from .search import search_index

HERE = Path(__file__).parent
KINDS = ("fig-", "tbl-", "sec-", "eq-")

Item = TypeVar("Item")
Result = TypeVar("Result")


def render_preview(root: Path, destination: Path) -> Path:
    """Render the book project at `root` into `destination`; returns its index.html.

    Raises `UserErrors`, a line for each problem, and then leaves `destination` as it was.
    """
    project = read_project(root.resolve())
    destination = destination.resolve()
    aside = root.resolve() / "_build"
    aside.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".preview-", dir=aside) as folder:
        fresh = Path(folder) / "book"
        _render(project, fresh, Path(folder))
        _swap(fresh, destination, Path(folder) / "last")
    return destination / "index.html"


def _render(project: Project, fresh: Path, folder: Path) -> None:
    problems = Problems()
    forget_notebooks()
    works = [pandoc.Work(project, page, folder) for page in project.pages]

    def first(work: pandoc.Work) -> tuple[str, Mapping[str, Any]]:
        text, cells = expand_embeds(work.page, fresh, problems)
        work.put("page", _page_data(project, work.page, cells))
        return pandoc.parse(work, text, problems)

    parsed = _parallel(first, works, "reading pages")
    found = [labels for _, labels in parsed]
    (folder / "book.json").write_text(json.dumps(_index(project.pages, found, problems)), encoding="utf-8")
    problems.raise_any()

    footer = pandoc.to_html("\n\n".join(project.footer.get(key, "") for key in ("left", "center", "right")))

    def second(number: int) -> str:
        shell = variables(project, number, found, footer)
        return pandoc.write(works[number], parsed[number][0], shell, problems)

    pages = _parallel(second, range(len(works)), "writing pages")
    for page, labels in zip(project.pages, found, strict=True):
        _copy_images(page, labels["images"], fresh, problems)
    problems.raise_any()
    for page, html in zip(project.pages, pages, strict=True):
        target = fresh / page.href
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(html, encoding="utf-8")
    titles = [labels["title"] for labels in found]
    entries = search_index(
        (page.href, title, html) for page, title, html in zip(project.pages, titles, pages, strict=True)
    )
    theme = fresh / "theme"
    shutil.copytree(HERE / "theme", theme, ignore=shutil.ignore_patterns("page.html"))
    (theme / "search-index.js").write_text(f"window.SEARCH_INDEX = {entries};\n", encoding="utf-8")
    shutil.copytree(project.katex, theme / "katex")
    problems.print_warnings(sys.stderr)


def _page_data(project: Project, page: Page, cells: list[dict[str, Any]]) -> dict[str, Any]:
    """What the Lua filters know of the page."""
    return {
        "name": page.name,
        "href": page.href,
        "to_root": page.to_root,
        "number": page.number,
        "appendix": page.appendix,
        "number_depth": project.number_depth,
        "cells": cells,
        "subtitle": project.subtitle if page.name == "index.qmd" else "",
    }


def _index(pages: Iterable[Page], found: Iterable[Mapping[str, Any]], problems: Problems) -> dict[str, Any]:
    """The labels of the whole book, and the anchors of each page; notes a label that stands for two things."""
    labels: dict[str, dict[str, Any]] = {}
    anchors: dict[str, dict[str, bool]] = {}
    for page, here in zip(pages, found, strict=True):
        anchors[page.name] = dict.fromkeys(here.get("labels") or {}, True)
        for label in here.get("twice") or ():
            problems.add(pandoc.locate(page, f"label #{label}"), f"the label {label} stands twice on this page")
        for label, entry in dict(here.get("labels") or {}).items():
            if not label.startswith(KINDS):
                continue
            if label in labels:
                problems.add(
                    pandoc.locate(page, f"label #{label}"), f"the label {label} is used in {labels[label]['page']} too"
                )
            labels[label] = {**entry, "page": page.href}
    return {"labels": labels, "anchors": anchors}


def _copy_images(page: Page, images: Iterable[str], fresh: Path, problems: Problems) -> None:
    for image in dict.fromkeys(images):
        target = (fresh / page.href).parent / image
        source = page.source.parent / image
        if target.exists():
            continue
        if not source.is_file():
            problems.add(pandoc.locate(page, f"picture {image}"), f"the picture {image} does not exist")
        elif not target.resolve().is_relative_to(fresh.resolve()):
            problems.add(pandoc.locate(page, f"picture {image}"), f"the picture {image} lies outside the book")
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)


def _parallel(function: Callable[[Item], Result], items: Sequence[Item], doing: str) -> list[Result]:
    """`function` of each item, in order; pandoc runs in processes of its own, so threads suffice.

    A terminal shows how far it is.
    """
    console = Console(stderr=True)
    with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        results = pool.map(function, items)
        shown = track(results, doing, len(items), console=console, transient=True, disable=not console.is_terminal)
        return list(shown)


def _swap(fresh: Path, destination: Path, last: Path) -> None:
    """Put `fresh` where `destination` is; both moves are renames within one file system."""
    if destination.exists():
        destination.rename(last)
    try:
        fresh.rename(destination)
    except OSError:
        if last.exists():
            last.rename(destination)
        raise
