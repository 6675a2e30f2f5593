"""The project file: which pages make the book, in which order, and how they are numbered."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from ...errors import UserError

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
    config = _load(path)
    book = _mapping(config, "book", path)
    html = _mapping(_mapping(config, "format", path), "html", path)
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
        katex=_existing(root, str(math["url"]).rstrip("/"), path),
        footer={"left": str(footer)} if isinstance(footer, str) else {key: str(value) for key, value in footer.items()},
        toc_depth=int(html.get("toc-depth", 3)),
        number_depth=int(html.get("number-depth", 6)),
        repository=book.get("repo-url"),
        author=book.get("author"),
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
    for name, part, appendix in _listed(book, path):
        source = _existing(root, name, path)
        if source.suffix != ".qmd":
            raise UserError(f"{path}: {name}: a page of the book must be a .qmd file")
        number = ""
        if appendix:
            appendices += 1
            number = chr(ord("A") + appendices - 1)
        elif name != "index.qmd" and not _unnumbered(source):
            chapters += 1
            number = str(chapters)
        yield Page(source, name, str(PurePosixPath(name).with_suffix(".html")), number, part, appendix)


def _listed(book: Mapping[str, Any], path: Path) -> Iterator[tuple[str, str | None, bool]]:
    """Every page that the project names: file, part, whether it is an appendix."""
    for entry in _list(book.get("chapters")):
        if isinstance(entry, str):
            yield entry, None, False
        elif isinstance(entry, dict) and isinstance(entry.get("part"), str):
            for name in _list(entry.get("chapters")):
                yield name, entry["part"], False
        else:
            raise UserError(f"{path}: book.chapters: expected a file, or a part with its chapters, got {entry!r}")
    for name in _list(book.get("appendices")):
        yield name, "Appendices", True


def _unnumbered(source: Path) -> bool:
    """Whether the page's title is marked `.unnumbered` (or `-`); raises `UserError` where a page has no title."""
    for _, line in source_lines(source.read_text(encoding="utf-8")):
        match = HEADING.fullmatch(line)
        if match:
            return bool(re.search(r"\.unnumbered\b|\{-\}", match["attributes"] or ""))
    raise UserError(f"{source}: no title; begin the page with '# Title {{#sec-name}}'")


def _load(path: Path) -> dict[str, Any]:
    try:
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; a book is rendered from the folder that holds _quarto.yml") from None
    except yaml.YAMLError as error:
        raise UserError(f"{path}: not YAML ({' '.join(str(error).split())})") from None
    if not isinstance(config, dict) or (config.get("project") or {}).get("type") != "book":
        raise UserError(f"{path}: project.type must be book")
    return config


def _mapping(config: Mapping[str, Any], key: str, path: Path) -> Mapping[str, Any]:
    value = config.get(key)
    if not isinstance(value, dict):
        raise UserError(f"{path}: the key {key!r} is missing, or no mapping")
    return value


def _list(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, list) else [value]


def _existing(root: Path, name: str, path: Path) -> Path:
    if not (root / name).exists():
        raise UserError(f"{path}: {name} does not exist")
    return root / name


def _filters(root: Path, name: str, path: Path) -> list[Path]:
    """A Lua file of the project, or those that the extension `name` contributes."""
    if name.endswith(".lua"):
        return [_existing(root, name, path)]
    extension = _existing(root, f"_extensions/{name}/_extension.yml", path)
    contributed = yaml.safe_load(extension.read_text(encoding="utf-8"))["contributes"]["filters"]
    return [_existing(extension.parent, file, extension) for file in contributed]
