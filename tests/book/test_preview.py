"""The preview's pages, read back as HTML: numbers, references, boxes, embeds, and what stands around the text."""

import json
import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bs4 import BeautifulSoup
from reading import Edit, change_cell, one, page, text

from efficient_training.book.preview import render_preview
from efficient_training.book.preview.cells import png_size
from efficient_training.book.preview.search import sections
from efficient_training.errors import UserErrors


@pytest.fixture(scope="session")
def chapter(rendered: Path) -> BeautifulSoup:
    soup: BeautifulSoup = page(rendered, "chapters/one.html")
    return soup


# Numbers and references


def test_chapters_and_appendices_are_numbered_and_unnumbered_ones_are_not(rendered: Path) -> None:
    titles = {
        name: text(one(page(rendered, name), "h1"))
        for name in (
            "index.html",
            "chapters/preface.html",
            "chapters/one.html",
            "chapters/two.html",
            "chapters/corrections.html",
        )
    }
    assert list(titles.values()) == [
        "A Sample Book",
        "How to read",
        "1 Activation checkpointing",
        "2 Mixed precision",
        "A Corrections",
    ]


def test_sections_are_numbered_to_the_depth_of_the_project(chapter: BeautifulSoup) -> None:
    headings = [text(heading) for heading in chapter.select("article h2, article h3")]
    assert headings == [
        "1.1 The model",
        "A smaller heading",
        "1.2 How it goes wrong",
        "1.3 Exercises",
        "Further reading",
        "References",
    ]


def test_figures_tables_and_equations_are_numbered_by_chapter(rendered: Path, chapter: BeautifulSoup) -> None:
    assert text(one(chapter, "#fig-one-curve figcaption")).startswith("Figure 1.1 Bytes saved for backward")
    assert text(one(chapter, "#fig-one-drawn figcaption")).startswith("Figure 1.2 A figure from a file")
    assert text(one(chapter, "#tbl-one-sizes figcaption")) == "Table 1.1 Bytes by component."
    assert text(one(chapter, "#tbl-one-typed figcaption")) == "Table 1.2 A wide table, typed by hand."
    assert text(one(chapter, "#eq-peak .equation-number")) == "(1.1)"
    assert text(one(page(rendered, "index.html"), "#tbl-index figcaption")).startswith("Table 1 ")
    assert text(one(page(rendered, "chapters/corrections.html"), "#tbl-corrections figcaption")).startswith(
        "Table A.1 "
    )


def test_cross_references_carry_the_number_and_lead_to_the_label(rendered: Path) -> None:
    found = {
        (name, text(link), str(link["href"]))
        for name in ("index.html", "chapters/one.html", "chapters/two.html", "chapters/corrections.html")
        for link in page(rendered, name).select("a.cross-reference")
    }
    assert {
        ("index.html", "Chapter 1", "chapters/one.html#sec-one"),
        ("index.html", "How to read", "chapters/preface.html#sec-preface"),
        ("index.html", "Appendix A", "chapters/corrections.html#sec-corrections"),
        ("chapters/one.html", "Equation 1.1", "#eq-peak"),
        ("chapters/one.html", "Figure 1.1", "#fig-one-curve"),
        ("chapters/one.html", "1.1", "#fig-one-curve"),
        ("chapters/one.html", "Tables 1.1", "#tbl-one-sizes"),
        ("chapters/one.html", "Table 1.2", "#tbl-one-typed"),
        ("chapters/two.html", "Section 1.1", "../chapters/one.html#sec-one-model"),
        ("chapters/two.html", "Table 1", "../index.html#tbl-index"),
        ("chapters/corrections.html", "Section A.1", "#sec-corrections-first"),
    } <= found


def test_every_link_inside_the_book_leads_to_a_file_and_an_anchor(rendered: Path) -> None:
    checked = 0
    for path in rendered.rglob("*.html"):
        soup = BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser")
        targets = [tag.get("href") or tag.get("src") for tag in soup.select("[href], [src]")]
        for target in map(str, targets):
            if target.startswith(("http", "data:")):
                continue
            name, _, anchor = target.partition("#")
            file = (path.parent / name).resolve() if name else path
            assert file.is_file(), f"{path.name} links to {target}"
            if anchor:
                there = BeautifulSoup(file.read_text(encoding="utf-8"), "html.parser")
                assert there.find(id=anchor), f"{path.name} links to {target}"
            checked += 1
    assert checked > 100


def test_no_id_stands_twice_on_a_page(rendered: Path) -> None:
    for path in rendered.rglob("*.html"):
        ids = [tag["id"] for tag in BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser").select("[id]")]
        assert len(ids) == len(set(ids)), path.name


def test_a_link_to_a_source_page_leads_to_the_rendered_one(chapter: BeautifulSoup) -> None:
    assert one(chapter, "article a[href^='two.']")["href"] == "two.html#sec-two"


def test_citations_are_set_and_listed_on_the_page_that_cites(rendered: Path, chapter: BeautifulSoup) -> None:
    assert "(Chen et al. 2016)" in text(one(chapter, "article"))
    assert [entry["id"] for entry in chapter.select("#refs .csl-entry")] == [
        "ref-chen2016training",
        "ref-micikevicius2018mixed",
    ]
    assert not page(rendered, "chapters/two.html").select("#refs")


# Boxes


def test_callouts(chapter: BeautifulSoup) -> None:
    assert [text(title) for title in chapter.select("aside.callout > .callout-title")] == [
        "Note",
        "Pitfall: use_reentrant=True trains nothing",
        "A title from a heading",
        "Caution",
    ]
    solution = one(chapter, "details.callout-tip")
    assert text(one(solution, "summary")) == "Solution"
    assert not solution.has_attr("open")
    assert "segments: 5" in text(solution)
    assert one(solution, "pre.python").get_text().startswith("best = min(range(1, blocks + 1)")


def test_tabsets_are_sections_with_titles_so_that_they_read_without_script(chapter: BeautifulSoup) -> None:
    tabs = one(chapter, ".tabset").select("section.tab")
    assert [text(one(tab, ".tab-title")) for tab in tabs] == ["PyTorch", "Shell"]
    assert "class Recipe" in text(tabs[0])
    assert "make book" in text(tabs[1])
    assert "PyTorch" not in [text(heading) for heading in chapter.select("h3")]


def test_values_and_claims_come_from_the_notebook_also_in_captions(chapter: BeautifulSoup) -> None:
    assert [text(value) for value in chapter.select("p .bound-value")] == ["2.50×", "3,200 KiB"]
    assert text(one(chapter, "figcaption .bound-value")) == "2.50×"
    assert text(one(chapter, ".bound-claim.held")).endswith("✓ held")
    assert "✗ not held here" in text(one(chapter, ".bound-claim.not-held"))
    assert "Example CPU" in str(one(chapter, "figcaption .bound-value")["data-note"])


# Embeds


def test_an_embedded_figure_has_its_picture_alt_text_and_size(rendered: Path, chapter: BeautifulSoup) -> None:
    image = one(chapter, "#fig-one-curve img")
    data = (rendered / "chapters" / str(image["src"])).read_bytes()
    assert (int(str(image["width"])), int(str(image["height"]))) == png_size(data)
    assert image["alt"] == "A curve that falls to a minimum at four segments and rises again"
    assert not one(chapter, "#fig-one-curve").find_previous_sibling("pre")
    assert one(chapter, "#fig-one-drawn img")["alt"] == "A drawn line"


def test_an_embedded_table_with_its_code(chapter: BeautifulSoup) -> None:
    cells = [text(cell) for cell in chapter.select("#tbl-one-sizes td")]
    assert cells == ["weights", "96", "a | pipe & more", "1,234"]
    code = one(chapter, '[data-label="tbl-one-sizes"] pre').get_text()
    assert code.startswith("rows = [")
    assert "#|" not in code


def test_columns_of_a_wide_table_have_no_fixed_widths(chapter: BeautifulSoup) -> None:
    table = one(chapter, "#tbl-one-typed table")
    assert not table.select("col")
    assert not table.has_attr("style")


def test_the_size_of_a_picture_heeds_its_density() -> None:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 1024, 512, 8, 0, 0, 0, 0))
    dense = chunk(b"pHYs", struct.pack(">IIB", round(160 / 0.0254), round(160 / 0.0254), 1))
    assert png_size(head + chunk(b"IDAT", b"")) == (1024, 512)
    assert png_size(head + dense + chunk(b"IDAT", b"")) == (614, 307)
    with pytest.raises(ValueError, match="not a PNG"):
        png_size(b"GIF89a")


HOSTILE = (
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "[go](javascript:alert(1))",
    "![see](https://example.org/track.png)",
    "[x]{onclick=alert(1) style=position:fixed}",
    "`<script>`{=html}",
    "```{=html}\n<script>alert(2)</script>\n```",
    "::: {onclick=alert(1)}\nboo\n:::",
)


def test_nothing_in_a_notebook_becomes_markup(sample: Path) -> None:
    hostile = "\n\n".join(HOSTILE)

    def output(kind: str) -> Callable[[dict[str, Any]], None]:
        shown = {"output_type": "display_data", "data": {kind: hostile}, "metadata": {}}
        return lambda cell: cell.update(outputs=[shown])

    def caption(cell: dict[str, Any]) -> None:
        source = "".join(cell["source"])
        cell["source"] = source.replace('"Bytes by component."', json.dumps(" ".join(HOSTILE[:6])))
        assert cell["source"] != source

    change_cell(sample, "tbl-one-sizes", output("text/markdown"))
    change_cell(sample, "one-exercise", output("text/plain"))
    change_cell(sample, "tbl-one-sizes", caption)
    chapter = page(render_preview(sample, sample / "_book").parent, "chapters/one.html")
    for selector in ('[data-label="tbl-one-sizes"] figcaption', "#tbl-one-sizes", '[data-label="one-exercise"]'):
        box = one(chapter, selector)
        assert "alert(1)" in box.get_text()
        assert not box.select("script, img, iframe, style, a[href^=javascript]")
        for tag in box.select("*"):
            assert not {"onclick", "onerror", "style"} & set(tag.attrs), tag


def test_html_beside_text_is_ignored_and_html_alone_is_refused(sample: Path) -> None:
    def beside(cell: dict[str, Any]) -> None:
        cell["outputs"][0]["data"]["text/html"] = "<script>alert(1)</script>"

    change_cell(sample, "tbl-one-sizes", beside)
    book = render_preview(sample, sample / "_book").parent
    assert "alert(1)" not in (book / "chapters/one.html").read_text(encoding="utf-8")

    def alone(cell: dict[str, Any]) -> None:
        cell["outputs"] = [{"output_type": "display_data", "data": {"text/html": "<b>x</b>"}, "metadata": {}}]

    change_cell(sample, "tbl-one-sizes", alone)
    with pytest.raises(UserErrors, match="tbl-one-sizes shows text/html; only text and PNG are embedded"):
        render_preview(sample, sample / "_book")


# Around the text


def test_titles_sidebar_neighbors_and_footer(rendered: Path, chapter: BeautifulSoup) -> None:
    assert text(one(chapter, "title")) == "Activation checkpointing – A Sample <Book>"
    sidebar = one(chapter, "nav.sidebar")
    assert [text(entry) for entry in sidebar.select(".part")] == ["First part", "Appendices"]
    assert one(sidebar, "[aria-current=page]")["href"] == "../chapters/one.html"
    assert one(chapter, "a[rel=prev]")["href"] == "../chapters/preface.html"
    assert one(chapter, "a[rel=next]")["href"] == "../chapters/two.html"
    footer = one(chapter, "footer")
    assert one(footer, "a")["href"] == "https://creativecommons.org/licenses/by/4.0/"
    assert text(one(footer, ".edition-line")) == (
        "Reference edition: Example CPU with 2 cores and 24 GiB of memory, Linux 6; 2026‑11‑29."
    )
    summary = text(one(page(rendered, "index.html"), ".edition-summary"))
    assert summary.startswith(text(one(footer, ".edition-line")) + " Versions: python 3.11, torch 2.13.0.")
    assert text(one(page(rendered, "index.html"), "h1 + .subtitle")) == "Every part of the syntax"


def test_links_to_the_repository_appear_only_when_it_is_known(sample: Path, edit: Edit, chapter: BeautifulSoup) -> None:
    assert "Source of this book" not in chapter.get_text()
    edit("_quarto.yml", "  page-footer:", "  repo-url: https://example.org/book\n  page-footer:")
    book = render_preview(sample, sample / "_book").parent
    link = one(page(book, "index.html"), "footer a[href^='https://example.org']")
    assert text(link) == "Source of this book"


def test_pages_without_math_do_not_load_katex(rendered: Path, chapter: BeautifulSoup) -> None:
    assert chapter.select("script[src$='katex.min.js']")
    assert not page(rendered, "chapters/two.html").select("script[src$='katex.min.js']")


def test_the_search_index_has_every_section_with_its_text() -> None:
    html = (
        "<main><article><h1 id=a>One</h1><p>x &lt; y<nav>no</nav><h2 id=b>1.1 T<em>w</em>o</h2>z</article></main> out"
    )
    assert sections(html) == [("a", "One", "x < y"), ("b", "1.1 Two", "z")]


def test_a_script_in_the_text_cannot_leave_the_search_index(sample: Path, edit: Edit) -> None:
    edit("chapters/two.qmd", "Text.", "`</script><script>alert(1)`")
    book = render_preview(sample, sample / "_book").parent
    index = (book / "theme/search-index.js").read_text(encoding="utf-8")
    assert "<" not in index
    assert "alert(1)" in index


def test_rendering_is_quick(sample: Path) -> None:
    """In processor time, which other work on the machine does not change; the book has about twice as many pages."""
    before = os.times()
    render_preview(sample, sample / "_book")
    after = os.times()
    assert sum(after[:4]) - sum(before[:4]) < 10
