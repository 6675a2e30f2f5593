"""What a notebook of an edition may hold: nothing that a page would run, fetch, or take for the book's own words.

An edition may come from a stranger, and its outputs end up in HTML. So only plain text, streams, verified PNG pictures
and harmless Markdown pass; what Markdown is harmless is decided on the syntax tree of pandoc, which also renders it,
not on the text.
"""

import base64
import binascii
import json
import re
import struct
import subprocess
import unicodedata
import zlib
from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

import nbformat

from .display import METADATA_KEY
from .errors import UserError
from .notebook import MIME_TYPES

MAX_TEXT = 200_000
"""Characters of one output's text."""
MAX_PNG = 8_000_000
"""Bytes of one picture."""
PNG_START = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR"
PNG_END = b"\x00\x00\x00\x00IEND\xaeB`\x82"
MAX_PIXELS = 10_000
"""Width and height of one picture."""
PANDOC_TIMEOUT_S = 10
"""What it needs is a hundredth of a second; some nestings take it for ever."""

TURNS = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""Characters that turn the direction of what follows, the book's own words included."""

NOTEBOOK_METADATA = {"kernelspec", "language_info", METADATA_KEY}
CELL_METADATA = {"tags"}

BLOCKS = {"Para", "Plain", "Header", "Table", "BulletList", "OrderedList", "BlockQuote", "CodeBlock"}
INLINES = {"Str", "Space", "SoftBreak", "LineBreak", "Emph", "Strong", "Superscript", "Subscript"}
SPECIAL = {"Quoted", "SingleQuote", "DoubleQuote", "Code", "Math", "InlineMath", "DisplayMath", "Link"}
DETAILS = {"AlignLeft", "AlignRight", "AlignCenter", "AlignDefault", "ColWidth", "ColWidthDefault"}
NUMBERING = {"Decimal", "DefaultStyle", "DefaultDelim", "Period"}
HARMLESS = BLOCKS | INLINES | SPECIAL | DETAILS | NUMBERING
"""The nodes of pandoc's tree that may stand in an edition's Markdown."""

NAMES = {"Image": "image", "Figure": "image", "Div": "fenced div", "Span": "span", "Cite": "citation (@)"}

ATTRIBUTES = {"Header": 1, "CodeBlock": 0, "Code": 0, "Link": 0, "Table": 0}
"""Where in a node's content its attributes stand."""

UNSAFE_MATH = re.compile(r"\\(href|url|html\w*|include\w*|input|write|csname|def|let)\b")


def check_notebook(notebook: Mapping[str, Any], where: str) -> None:
    """Raise `UserError` with the file and the cell where `notebook` holds what it may not.

    Sources are not looked at: a page shows the book's own, with the edition's outputs beside them.
    """
    _check_characters(notebook, where)
    ids = [cell.get("id") for cell in notebook["cells"]]
    if not all(isinstance(name, str) for name in ids) or len(set(ids)) < len(ids):
        raise UserError(f"{where}: a cell has no id, or that of another; each needs its own")
    try:
        nbformat.validate(nbformat.from_dict(notebook))
    except nbformat.ValidationError as error:
        raise UserError(f"{where}: not a valid notebook: {str(error).strip().splitlines()[0][:200]}") from None
    _only("metadata", notebook["metadata"], NOTEBOOK_METADATA, where)
    for cell in notebook["cells"]:
        place = f"{where}, cell {cell['id']}"
        if cell["cell_type"] not in ("code", "markdown") or cell.get("attachments"):
            raise UserError(f"{place}: only code and Markdown cells without attachments are accepted")
        _only("cell metadata", cell["metadata"], CELL_METADATA, place)
        for output in cell.get("outputs", ()):
            _check_output(output, place)


def _check_output(output: Mapping[str, Any], where: str) -> None:
    kind = output["output_type"]
    if kind == "stream":
        _check_text(joined(output["text"]), where)
        return
    if kind not in ("display_data", "execute_result"):
        raise UserError(f"{where}: an output of type {kind!r} is not accepted")
    _only("output metadata", output["metadata"], {METADATA_KEY}, where)
    _only("output", output["data"], MIME_TYPES, where)
    for mime, data in output["data"].items():
        if mime == "image/png":
            _check_png(joined(data), where)
        elif mime == "text/markdown":
            check_markdown(joined(data), where)
        else:
            _check_text(joined(data), where)


def _check_text(text: str, where: str) -> None:
    if len(text) > MAX_TEXT:
        raise UserError(f"{where}: a text of {len(text):,} characters; the limit is {MAX_TEXT:,}")


def _check_png(text: str, where: str) -> None:
    if len(text) > MAX_PNG * 4 / 3 + 1000:
        raise UserError(f"{where}: a picture of more than {MAX_PNG:,} bytes")
    try:
        data = base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError):
        raise UserError(f"{where}: image/png is not base64") from None
    whole = data.endswith(PNG_END) and zlib.crc32(data[12:29]) == int.from_bytes(data[29:33])
    if not (data.startswith(PNG_START) and whole):
        raise UserError(f"{where}: image/png is no PNG picture")
    width, height = struct.unpack(">II", data[16:24])
    if not (0 < width <= MAX_PIXELS and 0 < height <= MAX_PIXELS):
        raise UserError(f"{where}: a picture of {width} x {height} pixels; the limit is {MAX_PIXELS} each way")


def check_markdown(text: str, where: str) -> None:
    """Raise `UserError` where `text`, as pandoc reads it, holds more than text, tables, lists, math and https links."""
    if len(text) > MAX_TEXT:
        raise UserError(f"{where}: Markdown of {len(text):,} characters; the limit is {MAX_TEXT:,}")
    if "{{" in text:
        raise UserError(f"{where}: Markdown may hold no shortcode ({{{{< … >}}}})")
    fault = _markdown_fault(text)
    if fault:
        raise UserError(f"{where}: Markdown may hold no {fault}")


@lru_cache(maxsize=4096)
def _markdown_fault(text: str) -> str | None:
    import pypandoc

    command = [pypandoc.get_pandoc_path(), "--sandbox", "-f", "markdown", "-t", "json", "+RTS", "-M512M", "-RTS"]
    try:
        run = subprocess.run(
            command, input=text, capture_output=True, encoding="utf-8", timeout=PANDOC_TIMEOUT_S, check=True
        )
        document = json.loads(run.stdout)
    except (subprocess.SubprocessError, ValueError, RecursionError):
        return "such nesting: pandoc cannot read it"
    if document["meta"]:
        return "front matter"
    return next(filter(None, map(_node_fault, _nodes(document["blocks"]))), None)


def _nodes(root: Any) -> Iterator[Mapping[str, Any]]:
    """The nodes of a pandoc tree, without recursion."""
    stack = [root]
    while stack:
        item = stack.pop()
        if isinstance(item, list):
            stack.extend(item)
        elif isinstance(item, dict):
            yield item
            stack.extend(item.values())


def _node_fault(node: Mapping[str, Any]) -> str | None:
    kind, content = node.get("t"), node.get("c")
    if kind in ("RawBlock", "RawInline"):
        return f"raw {content[0]}" if content else "raw block"
    if kind not in HARMLESS:
        return NAMES.get(str(kind), str(kind))
    if kind in ATTRIBUTES:
        assert content is not None
        name, classes, pairs = content[ATTRIBUTES[kind]]
        generated = kind == "Header" or (kind == "Link" and classes in (["uri"], ["email"]))
        language = kind == "CodeBlock" and all(word.isalnum() for word in classes)
        if pairs or (name and not generated) or (classes and not (generated or language)):
            return "attributes ({…})"
    if kind == "Link":
        assert content is not None
        return None if urlsplit(content[2][0]).scheme == "https" else "link with a scheme other than https"
    if kind == "Math":
        assert content is not None
        return "math that leaves math" if UNSAFE_MATH.search(content[1]) else None
    return None


def _check_characters(value: Any, where: str) -> None:
    """No control characters (a terminal would obey them), no lone surrogates (they cannot be written), no reversal."""
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, Mapping):
            stack.extend(item.keys())
            stack.extend(item.values())
        elif isinstance(item, list):
            stack.extend(item)
        elif isinstance(item, str) and not item.isprintable():
            bad = next((c for c in item if c in TURNS or (c not in "\t\n\r" and _is_control(c))), None)
            if bad:
                raise UserError(f"{where}: holds the control character U+{ord(bad):04X}")


def _is_control(character: str) -> bool:
    return unicodedata.category(character) in ("Cc", "Cs")


def _only(what: str, keys: Mapping[Any, Any], allowed: Collection[str], where: str) -> None:
    unknown = [str(key) for key in keys if key not in allowed]
    if unknown:
        raise UserError(f"{where}: {what} may not hold {unknown[0][:60]!r}")


def joined(text: str | list[str]) -> str:
    """The text of a field that the notebook format lets be one string or a list of lines."""
    return text if isinstance(text, str) else "".join(text)
