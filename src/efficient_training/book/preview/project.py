"""The project file: which pages make the book, in which order, and how they are numbered."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from ...errors import UserError
from ...project import read_text
from ...validation import validate

HEADING = re.compile(r"# +(?P<title>.*?)\s*(?P<attributes>\{[^{}]*\})?\s*")
FENCE = re.compile(r"\s*(`{3,}|~{3,})")


@dataclass(frozen=True)
class Page:
    """One page: `number` is "3", "A" in an appendix, "" where it has none; `href` is relative to the book's root."""

    source: Path
    name: str
    href: str
    number: str
    part: str | None
    appendix: bool

    @property
    def to_root(self) -> str:
        """The relative address of the book's root as seen from this page: "" or "../"."""
        return "../" * (len(PurePosixPath(self.href).parts) - 1)


@dataclass(frozen=True)
class Project:
    """What the preview takes from `_quarto.yml`."""

    root: Path
    title: str
    subtitle: str
    language: str
    pages: tuple[Page, ...]
    bibliography: tuple[Path, ...]
    filters: tuple[Path, ...]
    katex: Path
    footer: Mapping[str, str]
    toc_depth: int
    number_depth: int
    repository: str | None
    author: str | None


def read_project(root: Path) -> Project:
    """Read `root/_quarto.yml`; raises `UserError` naming the first key that the preview cannot use."""
    path = root / "_quarto.yml"
    config = load_config(path)
    kind = config.get("project")
    if not isinstance(kind, dict) or kind.get("type") != "book":
        raise UserError(f"{path}: project.type must be book")
    validate(config, "quarto", str(path))
    book, html = config["book"], config["format"]["html"]
    math = html.get("html-math-method")
    if not isinstance(math, dict) or math.get("method") != "katex" or "url" not in math:
        raise UserError(
            f"{path}: format.html.html-math-method must be {{method: katex, url: <a folder of the project>}}"
        )
    footer = book.get("page-footer") or {}
    return Project(
        root=root,
        title=str(book.get("title") or ""),
        subtitle=str(book.get("subtitle") or ""),
        language=str(config.get("lang") or "en"),
        pages=tuple(_pages(root, book, path)),
        bibliography=tuple(_existing(root, name, path) for name in _list(config.get("bibliography"))),
        filters=tuple(file for name in _list(config.get("filters")) for file in _filters(root, name, path)),
        katex=_existing(root, str(math["url"]).rstrip("/"), path, folder=True),
        footer={"left": footer} if isinstance(footer, str) else footer,
        toc_depth=html.get("toc-depth", 3),
        number_depth=html.get("number-depth", 6),
        repository=book.get("repo-url"),
        author=", ".join(_list(book.get("author"))) or None,
    )


def source_lines(text: str) -> Iterator[tuple[int, str]]:
    """The lines of a page, numbered from 1, but for the contents of fenced code."""
    fence = ""
    for number, line in enumerate(text.splitlines(), start=1):
        match = FENCE.match(line)
        if fence:
            if match and match[1].startswith(fence) and not line.strip(" `~"):
                fence = ""
        else:
            fence = match[1] if match else ""
            yield number, line


def _pages(root: Path, book: Mapping[str, Any], path: Path) -> Iterator[Page]:
    chapters = 0
    appendices = 0
    for name, part, appendix in _listed(book):
        source = _existing(root, name, path)
        if source.suffix != ".qmd":
            raise UserError(f"{path}: {name}: a page of the book must be a .qmd file")
        unnumbered = _unnumbered(source)
        number = ""
        if appendix:
            appendices += 1
            number = chr(ord("A") + appendices - 1)
        elif name != "index.qmd" and not unnumbered:
            chapters += 1
            number = str(chapters)
        yield Page(source, name, str(PurePosixPath(name).with_suffix(".html")), number, part, appendix)


def _listed(book: Mapping[str, Any]) -> Iterator[tuple[str, str | None, bool]]:
    """Every page that the project names: file, part, whether it is an appendix."""
    for entry in _list(book.get("chapters")):
        if isinstance(entry, str):
            yield entry, None, False
        else:
            for name in entry["chapters"]:
                yield name, entry["part"], False
    for name in _list(book.get("appendices")):
        yield name, "Appendices", True


def _unnumbered(source: Path) -> bool:
    """Whether the page's title is marked `.unnumbered` (or `-`); raises `UserError` where a page has no title."""
    for _, line in source_lines(read_text(source)):
        match = HEADING.fullmatch(line)
        if match:
            return bool(re.search(r"\.unnumbered\b|\{-\}", match["attributes"] or ""))
    raise UserError(f"{source}: no title; begin the page with '# Title {{#sec-name}}'")


def load_config(path: Path) -> dict[str, Any]:
    """What `_quarto.yml` or another such file at `path` says; raises `UserError` where it says nothing."""
    try:
        config = yaml.safe_load(read_text(path))
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; a book is rendered from the folder that holds _quarto.yml") from None
    except yaml.YAMLError as error:
        raise UserError(f"{path}: not YAML ({' '.join(str(error).split())})") from None
    if not isinstance(config, dict):
        raise UserError(f"{path}: holds no keys; take it from git")
    return config


def _list(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, list) else [value]


def _existing(root: Path, name: str, path: Path, *, folder: bool = False) -> Path:
    found = root / name
    if not (found.is_dir() if folder else found.is_file()):
        raise UserError(
            f"{path}: {name} {'is not a ' + ('folder' if folder else 'file') if found.exists() else 'does not exist'}"
        )
    return found


def _filters(root: Path, name: str, path: Path) -> list[Path]:
    """A Lua file of the project, or those that the extension `name` contributes."""
    if name.endswith(".lua"):
        return [_existing(root, name, path)]
    extension = _existing(root, f"_extensions/{name}/_extension.yml", path)
    contributed = load_config(extension).get("contributes")
    files = contributed.get("filters") if isinstance(contributed, dict) else None
    if not isinstance(files, list):
        raise UserError(f"{extension}: contributes.filters must be a list of Lua files")
    return [_existing(extension.parent, str(file), extension) for file in files]
