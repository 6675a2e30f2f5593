"""What of an edition's cell outputs the book takes over, when the edition may come from somebody else.

Text, PNG images and plain Markdown tables pass, with the records and claims in their metadata; HTML, SVG, scripts,
widgets, and Markdown that holds more than text, do not. Nothing that passes is read as HTML or as a shortcode later.
"""

import base64
import binascii
import json
import subprocess
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import pypandoc

from ..display import METADATA_KEY

PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
BLOCKS = {"Table", "Para", "Plain"}
INLINES = {"Str", "Space", "SoftBreak", "LineBreak", "Emph", "Strong", "Superscript", "Subscript", "Strikeout"}
LITERALS = {"Code", "Math", "InlineMath", "DisplayMath", "Quoted", "SingleQuote", "DoubleQuote"}
COLUMNS = {"AlignDefault", "AlignLeft", "AlignRight", "AlignCenter", "ColWidth", "ColWidthDefault"}
PLAIN = BLOCKS | INLINES | LITERALS | COLUMNS
"""Nodes of pandoc's document that text and tables are made of; no link, image, span, div or raw HTML is among them."""

NO_ATTRIBUTES = ["", [], []]

BREAK = "\u200b"


def safe_outputs(outputs: object) -> list[dict[str, Any]]:
    """Those outputs that may stand in the book, each reduced to what is known to be harmless."""
    kept = (_safe(output) for output in outputs if isinstance(output, dict)) if isinstance(outputs, list) else ()
    return [output for output in kept if output is not None]


def _safe(output: Mapping[str, Any]) -> dict[str, Any] | None:
    kind = output.get("output_type")
    if kind == "stream" and output.get("name") == "stdout":
        return {"output_type": "stream", "name": "stdout", "text": inert(_text(output.get("text")))}
    if kind not in ("display_data", "execute_result"):
        return None
    data = dict(_safe_data(output.get("data")))
    metadata = output.get("metadata")
    own = metadata.get(METADATA_KEY) if isinstance(metadata, dict) else None
    if not data and own is None:
        return None
    return {"output_type": "display_data", "data": data, "metadata": {} if own is None else {METADATA_KEY: own}}


def _safe_data(data: object) -> Iterator[tuple[str, str]]:
    if not isinstance(data, dict):
        return
    if "image/png" in data and (image := _png(_text(data["image/png"]))):
        yield "image/png", image
    if "text/markdown" in data and is_plain_markdown(text := _text(data["text/markdown"])):
        yield "text/markdown", text
    if "text/plain" in data:
        yield "text/plain", inert(_text(data["text/plain"]))


def _png(encoded: str) -> str | None:
    try:
        image = base64.b64decode(encoded, validate=False)
    except (binascii.Error, ValueError):
        return None
    return base64.b64encode(image).decode() if image.startswith(PNG_SIGNATURE) else None


def _text(value: object) -> str:
    """nbformat's multiline string: one string, or a list of them."""
    return "".join(map(str, value)) if isinstance(value, list) else str(value)


def inert(text: str) -> str:
    """`text` with an invisible break in whatever would end a code block around it, or call a shortcode."""
    for mark in ("```", "~~~"):
        text = text.replace(mark, BREAK.join(mark))
    return text.replace("{{<", "{" + BREAK + "{<")


@cache
def is_plain_markdown(text: str) -> bool:
    """Whether `text`, as pandoc reads Markdown, consists of text and tables only."""
    if "{{<" in text:
        return False
    command = [str(pypandoc.get_pandoc_path()), "--from", "markdown", "--to", "json", "--sandbox"]
    done = subprocess.run(command, input=text, capture_output=True, encoding="utf-8", check=False)
    if done.returncode:
        return False
    document = json.loads(done.stdout)
    return not document["meta"] and _is_plain(document["blocks"])


def _is_plain(node: object) -> bool:
    if isinstance(node, list):
        return all(map(_is_plain, node))
    if not isinstance(node, dict):
        return True
    kind, content = node.get("t"), node.get("c")
    if kind in ("Code", "Table") and content and content[0] != NO_ATTRIBUTES:
        return False
    return kind in PLAIN and _is_plain(content)
