"""All checks of the book's sources, in one go."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ... import project
from ...editions import REFERENCE, load_edition
from ...errors import UserError
from ...project import read_text
from ..preview.project import load_config
from . import bindings, quantities
from .captions import placed, read_captions
from .embeds import check_embeds, labelled_cells
from .notebooks import check_notebooks
from .panache import check_with_panache
from .problems import Problem
from .quantities import Counts
from .references import bibliography_keys, check_references
from .source import read_chapters
from .syntax import check_syntax

QUARTO = Path("_quarto.yml")


@dataclass(frozen=True)
class Survey:
    """What there is to mend, and how the numbers of each page are backed."""

    problems: list[Problem]
    counts: dict[str, Counts]


def check(root: Path, edition: str = REFERENCE) -> list[Problem]:
    """What there is to mend in the book's sources and in an edition's notebooks; empty where all is well."""
    return survey(root, edition).problems


def counts(root: Path) -> dict[str, Counts]:
    """For each page, how many numbers are bound, cited and given."""
    return survey(root).counts


def survey(root: Path, edition: str = REFERENCE) -> Survey:
    """Check the book; raises `UserError` where there is no book, no such edition, or one that fails validation.

    Names are looked up in the reference edition, and in the other one too where one is asked for.
    """
    labelled_cells.cache_clear()
    config = _config(root)
    listed = list(_listed(config))
    problems = list(_pages(root, listed))
    results = check_notebooks(root, root / "notebooks", REFERENCE)
    problems += results.problems
    if edition != REFERENCE:
        load_edition(root, edition)
        other = check_notebooks(root, project.edition_folder(root, edition), edition)
        problems += other.problems
        results.records.update(other.records)
        results.claims.update(other.claims)
    names = [name for name in listed if (root / name).is_file()]
    chapters = read_chapters(root, names)
    counted: dict[str, Counts] = {}
    embedded: dict[Path, Mapping[str, int]] = {}
    for chapter in chapters:
        problems += bindings.check_chapter(chapter, results.records, results.claims)
        typed, counted[chapter.path.as_posix()] = quantities.check_chapter(chapter, results.claims)
        embeds = check_embeds(chapter)
        embedded[chapter.path] = embeds.labels
        problems += [*typed, *embeds.problems, *check_syntax(chapter)]
    captions = {item.page.path: item for item in read_captions(root)}
    for path, item in captions.items():
        problems += placed(item, bindings.check_chapter(item.page, results.records, results.claims))
        problems += placed(item, quantities.check_chapter(item.page, results.claims)[0])
        embedded[path] = {}
    pages = [*chapters, *(item.page for item in captions.values())]
    for problem in check_references(pages, embedded, bibliography_keys(_bibliography(root, config))):
        problems.append(captions[problem.path].place(problem) if problem.path in captions else problem)
    problems += check_with_panache(root, names)
    return Survey(sorted(set(problems)), counted)


def _config(root: Path) -> dict[str, Any]:
    config = load_config(root / QUARTO)
    if not isinstance(config.get("book"), dict):
        raise UserError(f"{root / QUARTO}: the key 'book' is missing")
    return config


def _listed(config: Mapping[str, Any]) -> Iterator[str]:
    """The pages that the project names, in order."""
    for entry in [*_list(config["book"].get("chapters")), *_list(config["book"].get("appendices"))]:
        if isinstance(entry, dict):
            yield from map(str, _list(entry.get("chapters")))
        else:
            yield str(entry)


def _bibliography(root: Path, config: Mapping[str, Any]) -> list[Path]:
    return [root / str(name) for name in _list(config.get("bibliography"))]


def _list(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, list) else [value]


def _pages(root: Path, listed: list[str]) -> Iterator[Problem]:
    for name in listed:
        if not (root / name).is_file():
            yield Problem(QUARTO, _line(root, name), f"the page {name} does not exist")
    for path in sorted([*root.glob("*.qmd"), *root.glob("chapters/**/*.qmd")]):
        place = path.relative_to(root)
        if place.as_posix() not in listed and not path.name.startswith("_"):
            yield Problem(place, 1, "the page is not listed in _quarto.yml; list it, or remove it")


def _line(root: Path, words: str) -> int:
    text = read_text(root / QUARTO)
    return text.count("\n", 0, max(text.find(words), 0)) + 1
