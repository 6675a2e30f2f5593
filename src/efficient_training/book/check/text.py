"""The inlines of pandoc's document: walked, and flattened to text with one mark for whatever is not prose."""

import re
from collections.abc import Iterator
from typing import Any

BOUND, GIVEN, CITED, MATH, CODE = "\ue000", "\ue001", "\ue002", "\ue003", "\ue004"
MARKS = "\ue000-\ue004"

CROSS_REFERENCE = re.compile(r"[Ff]ig-|[Tt]bl-|[Ee]q-|[Ss]ec-|[Ll]st-")

NUMERIC_MATH = re.compile(r"[~\d.,\s]*\d[~\d.,\s]*[×%]?\s*")
FIRST_CHILD = {"Emph", "Strong", "Strikeout", "Superscript", "Subscript", "SmallCaps", "Underline"}
SECOND_CHILD = {"Quoted", "Cite", "Link", "Span"}


def children(node: Any) -> list[Any]:
    """The inlines inside an inline; neither a footnote's blocks, nor a picture's text, which repeats its caption."""
    if node["t"] in FIRST_CHILD:
        return list(node["c"])
    return list(node["c"][1]) if node["t"] in SECOND_CHILD else []


def walk(inlines: list[Any]) -> Iterator[Any]:
    """Every inline, outer before inner."""
    for node in inlines:
        yield node
        yield from walk(children(node))


def classes(node: Any) -> set[str]:
    """The classes of a span, image or link."""
    return set(node["c"][0][1])


def attributes(node: Any) -> dict[str, str]:
    """The attributes of a span, image or link."""
    return dict(node["c"][0][2])


def stringify(inlines: list[Any]) -> str:
    """The text of inlines, as written."""
    return "".join(map(_string, inlines))


def _string(node: Any) -> str:
    match node["t"]:
        case "Str":
            return str(node["c"])
        case "Space" | "SoftBreak" | "LineBreak":
            return " "
        case "Code" | "Math":
            return str(node["c"][1])
    return stringify(children(node))


def prose(inlines: list[Any]) -> str:
    """The text of inlines with a mark for bound and given numbers, citations, math and code.

    Math that is nothing but a number counts as text: `$2\\times$` is a ratio like any other.
    """
    return "".join(map(_prose, inlines))


def _prose(node: Any) -> str:
    match node["t"]:
        case "Code":
            return CODE
        case "Math":
            return _math(node["c"][1])
        case "Superscript":
            return "^" + prose(children(node))
        case "Cite":
            keys = (citation["citationId"] for citation in node["c"][0])
            return "" if all(map(CROSS_REFERENCE.match, keys)) else CITED
        case "Span":
            kinds = classes(node)
            if kinds & {"value", "claim"}:
                return BOUND
            return GIVEN if "given" in kinds else prose(children(node))
        case "Image":
            return ""
    inner = children(node)
    return prose(inner) if inner else _string(node)


def _math(source: str) -> str:
    plain = re.sub(r"\\times\b", "×", source).replace("\\%", "%").replace("{,}", ",")
    plain = re.sub(r"\\[,;: ]|[{}]", " ", plain)
    return plain if NUMERIC_MATH.fullmatch(plain) else MATH


def first_words(inlines: list[Any], most: int = 6) -> str:
    """The first few words, as they stand in the source, up to the first thing that is written otherwise."""
    words: list[str] = []
    text = ""
    for node in inlines:
        if node["t"] in FIRST_CHILD - {"Superscript", "Subscript"} | {"Str", "Space", "SoftBreak"}:
            text += stringify([node])
        elif text.strip():
            break
        elif node["t"] in ("Span", "Link"):
            text += "[" + stringify(children(node))
            break
        elif node["t"] in ("Math", "Code"):
            text += node["c"][1]
            break
        elif node["t"] == "Cite":
            text += stringify(children(node))
            break
    words = text.split()
    return " ".join(words[:most])
