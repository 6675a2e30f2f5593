"""The search index: the text of every section of every page, as the page's script reads it."""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from html.parser import HTMLParser

HEADINGS = {"h1", "h2", "h3", "h4"}
SILENT = {"script", "style", "nav", "head", "svg"}
BREAKS = {"p", "li", "td", "th", "pre", "figcaption", "dd", "dt", "summary", "br", "div", "section"}


@dataclass
class Section:
    """A heading and the text under it, up to the next heading."""

    anchor: str
    heading: list[str] = field(default_factory=list)
    text: list[str] = field(default_factory=list)


class _Reader(HTMLParser):
    """Collects the sections inside <main>; `depth` counts the open elements whose text is no part of the book."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.sections = [Section("")]
        self.inside = False
        self.silent: list[str] = []
        self.heading: str | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        if tag == "main":
            self.inside = True
        elif not self.inside:
            return
        elif tag in SILENT:
            self.silent.append(tag)
        elif tag in HEADINGS and not self.silent:
            self.heading = tag
            self.sections.append(Section(attributes.get("id") or ""))
        elif tag in BREAKS:
            self.sections[-1].text.append(" ")

    def handle_endtag(self, tag: str) -> None:
        if tag == "main":
            self.inside = False
        elif self.silent and tag == self.silent[-1]:
            self.silent.pop()
        elif tag == self.heading:
            self.heading = None

    def handle_data(self, data: str) -> None:
        if self.inside and not self.silent:
            section = self.sections[-1]
            (section.heading if self.heading else section.text).append(data)


def sections(html: str) -> list[tuple[str, str, str]]:
    """(anchor, heading, text) of each section of a rendered page that has any text."""
    reader = _Reader()
    reader.feed(html)
    reader.close()
    found = ((part.anchor, _squeeze(part.heading), _squeeze(part.text)) for part in reader.sections)
    return [(anchor, heading, text) for anchor, heading, text in found if heading or text]


def search_index(pages: Iterable[tuple[str, str, str]]) -> str:
    """JSON of {href, page, heading, text} for every section; `pages` are (href, title, html)."""
    entries = [
        {"href": f"{href}#{anchor}" if anchor else href, "page": title, "heading": heading, "text": text}
        for href, title, html in pages
        for anchor, heading, text in sections(html)
    ]
    return json.dumps(entries, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")


def _squeeze(parts: Iterable[str]) -> str:
    return re.sub(r"\s+", " ", "".join(parts)).strip()
