"""Embedded notebook cells: from an executed notebook to data that the Lua filter turns into blocks.

An edition may come from somebody else, so only text and PNG outputs are taken, never HTML, and their text is read
later by a Markdown reader that knows neither HTML nor attributes nor links.
"""

import base64
import binascii
import hashlib
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, TextIO

import yaml

from ...editions import load_json
from ...errors import UserError, UserErrors
from .project import Page, source_lines

SHORTCODE = re.compile(r"(?P<indent>\s*)\{\{<\s*(?P<name>\S+)\s*(?P<arguments>.*?)\s*>\}\}\s*")
ANY_SHORTCODE = re.compile(r"(?<!\{)\{\{<.*?>\}\}(?!\})")
EXECUTED = re.compile(r"\s*(`{3,}|~{3,})\s*\{\w+[^}]*\}")
EMBED = re.compile(r"(?P<path>[^\s#]+)#(?P<label>[A-Za-z0-9_-]+)(?P<echo>\s+echo=[\"']?true[\"']?)?")
ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"


@dataclass
class Problems:
    """What is wrong with the book, one line each, gathered so that an author sees all of it at once."""

    lines: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def warn(self, where: object, what: str) -> None:
        """Note something that does not keep the book from being rendered."""
        if (line := f"{where}: {what}") not in self.warnings:
            self.warnings.append(line)

    def print_warnings(self, file: TextIO) -> None:
        """Print the warnings, a line each."""
        for line in self.warnings:
            print(f"warning: {line}", file=file)

    def add(self, where: object, what: str) -> None:
        """Note `what` is wrong at `where`, once."""
        line = f"{where}: {what}"
        if line not in self.lines:
            self.lines.append(line)

    def raise_any(self) -> None:
        """Raise `UserErrors`, in the order of files and lines, where there is any problem."""
        if self.lines:
            raise UserErrors(sorted(self.lines, key=_place))


def _place(problem: str) -> tuple[str, int]:
    """The file and the line at the beginning of a problem."""
    match = re.match(r"(?P<file>.*?)(?::(?P<line>\d+))?: ", problem)
    return (match["file"], int(match["line"] or 0)) if match else (problem, 0)


def expand_embeds(page: Page, destination: Path, problems: Problems) -> tuple[str, list[dict[str, Any]]]:
    """The page's text with each embed replaced by an empty div, and the cells that belong there.

    PNG outputs are written below `destination`, the folder of the rendered book.
    """
    text = page.source.read_text(encoding="utf-8")
    lines = text.splitlines()
    cells: list[dict[str, Any]] = []
    for number, line in source_lines(text):
        where = f"{page.source}:{number}"
        match = SHORTCODE.fullmatch(line)
        if match and match["name"] == "embed" and _alone(lines, number - 1):
            if match["indent"]:
                problems.add(where, "an embed may not be indented, as in a list: Quarto would end the list there")
            lines[number - 1] = f"::: {{.preview-embed}}\n{len(cells)}\n:::"
            cells.append(_embed(page, match["arguments"], destination, where, problems))
        elif match and match["name"] == "embed":
            problems.add(where, "an embed must stand alone in its paragraph; put a blank line before and after it")
        elif EXECUTED.match(line):
            problems.add(where, f"executed code ({line.strip()}) is outside the book's subset; put it into a notebook")
        elif found := ANY_SHORTCODE.search(re.sub(r"`[^`]*`", "", line)):
            problems.add(where, f"the shortcode {found[0]} is outside the book's subset; only embed is in it")
    return "\n".join(lines) + "\n", cells


def _alone(lines: list[str], index: int) -> bool:
    around = [lines[place].strip() for place in (index - 1, index + 1) if 0 <= place < len(lines)]
    return all(not line or line.startswith(":::") for line in around)


def _embed(page: Page, arguments: str, destination: Path, where: str, problems: Problems) -> dict[str, Any]:
    match = EMBED.fullmatch(arguments)
    if match is None:
        problems.add(where, f"cannot read the embed {arguments!r}; expected path/to/notebook.ipynb#label [echo=true]")
        return _empty("")
    label = match["label"]
    try:
        notebook = (page.source.parent / match["path"]).resolve()
        labelled = _labelled(notebook)
        if label not in labelled:
            raise UserError(
                f"{match['path']} has no cell labelled {label}; labels there: {', '.join(labelled) or 'none'}"
            )
        return _cell(label, labelled[label], bool(match["echo"]), _Pictures(page, destination, label))
    except UserError as error:
        problems.add(where, str(error))
        return _empty(label)


def _empty(label: str) -> dict[str, Any]:
    return {"label": label, "caption": "", "code": "", "outputs": []}


@cache
def _labelled(notebook: Path) -> Mapping[str, tuple[Mapping[str, Any], dict[str, Any], str]]:
    """Label to (cell, its options, its code without them); raises `UserError` where the notebook cannot be read."""
    found = {}
    for cell in load_json(notebook)["cells"]:
        if isinstance(cell, dict) and cell.get("cell_type") == "code":
            options, code = cell_options(_text(cell.get("source")), str(notebook))
            if isinstance(options.get("label"), str):
                found[options["label"]] = (cell, options, code)
    return found


def forget_notebooks() -> None:
    """Read notebooks anew; they may have been executed since the last render."""
    _labelled.cache_clear()


def cell_options(source: str, where: str) -> tuple[dict[str, Any], str]:
    """The `#|` options at the top of a cell, and the code under them."""
    head = re.match(r"(?:#\|.*(?:\n|\Z))*", source)
    assert head is not None
    try:
        options = yaml.safe_load(re.sub(r"^#\| ?", "", head[0], flags=re.MULTILINE)) or {}
    except yaml.YAMLError as error:
        raise UserError(f"{where}: cell options are not YAML ({' '.join(str(error).split())})") from None
    return (options if isinstance(options, dict) else {}), source[head.end() :].strip("\n")


def _cell(
    label: str, labelled: tuple[Mapping[str, Any], dict[str, Any], str], echo: bool, pictures: "_Pictures"
) -> dict[str, Any]:
    cell, options, code = labelled
    outputs = list(_outputs(label, cell, str(options.get("fig-alt") or ""), pictures))
    if not outputs and not echo:
        raise UserError(f"the cell {label} has no output; execute its notebook")
    return {
        "label": label,
        "caption": str(options.get("fig-cap") or options.get("tbl-cap") or ""),
        "code": code if echo else "",
        "outputs": outputs,
    }


def _outputs(label: str, cell: Mapping[str, Any], alt: str, pictures: "_Pictures") -> Iterator[dict[str, Any]]:
    """The richest safe form of each output; neighboring pieces of plain text are joined."""
    plain: list[str] = []
    for output in cell.get("outputs") or ():
        kind, data = output.get("output_type"), output.get("data") or {}
        if kind == "error":
            raise UserError(
                f"the cell {label} ended in an error ({output.get('ename')}); mend and execute its notebook"
            )
        if kind == "stream":
            text, other = _text(output.get("text")), None
        elif "image/png" in data:
            text, other = "", {"type": "image", "alt": alt, **pictures.write(_text(data["image/png"]))}
        elif "text/markdown" in data:
            text, other = "", {"type": "markdown", "text": _text(data["text/markdown"])}
        elif "text/plain" in data:
            text, other = _text(data["text/plain"]), None
        else:
            raise UserError(f"the cell {label} shows {', '.join(sorted(data)) or kind}; only text and PNG are embedded")
        if other is None:
            plain.append(ANSI.sub("", text).rstrip("\n"))
            continue
        yield from _joined(plain)
        yield other
    yield from _joined(plain)


def _joined(plain: list[str]) -> Iterator[dict[str, Any]]:
    if plain:
        yield {"type": "text", "text": "\n".join(plain)}
        plain.clear()


def _text(value: object) -> str:
    """nbformat's multiline string: one string, or a list of them."""
    return "".join(map(str, value)) if isinstance(value, list) else str(value or "")


@dataclass
class _Pictures:
    """Writes a cell's PNG outputs beside the page that shows them."""

    page: Page
    destination: Path
    label: str

    def write(self, encoded: str) -> dict[str, Any]:
        """Write one base64 PNG; its address as seen from the page, and its size in CSS pixels."""
        try:
            data = base64.b64decode(encoded)
            width, height = png_size(data)
        except (binascii.Error, ValueError, struct.error):
            raise UserError(f"the cell {self.label} holds an image that is no PNG") from None
        name = f"{Path(self.page.href).stem}_files/{self.label}-{hashlib.sha256(data).hexdigest()[:8]}.png"
        target = (self.destination / self.page.href).parent / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
        return {"src": name, "width": width, "height": height}


def png_size(data: bytes) -> tuple[int, int]:
    """Width and height in CSS pixels (96 an inch): pixels over the density in the pHYs chunk, or pixels without one."""
    if not data.startswith(PNG_SIGNATURE):
        raise ValueError("not a PNG")
    width, height = struct.unpack(">II", data[16:24])
    offset, scale = len(PNG_SIGNATURE), 1.0
    while offset + 8 <= len(data):
        length, kind = struct.unpack(">I4s", data[offset : offset + 8])
        if kind == b"pHYs":
            per_meter, _, unit = struct.unpack(">IIB", data[offset + 8 : offset + 17])
            if unit == 1 and per_meter:
                scale = 96 / (per_meter * 0.0254)
        if kind in (b"pHYs", b"IDAT"):
            break
        offset += length + 12
    return max(1, round(width * scale)), max(1, round(height * scale))
