"""What keeps a book from rendering: every fault is named with the page and the line, and nothing is half written."""

import base64
import shutil
from pathlib import Path
from typing import Any

import pytest
from reading import Edit, change_cell, problems

from efficient_training.book.preview import render_preview
from efficient_training.errors import UserError, UserErrors

# In the order of pandoc's passes: what the first finds keeps the second from running.
FIRST = {
    "{{< embed ../notebooks/sample.ipynb#fig-none >}}": "has no cell labelled fig-none",
    "{{< embed ../notebooks/none.ipynb#fig-x >}}": "no such notebook",
    "{{< embed sample >}}": "cannot read the embed 'sample'",
    "See\n{{< embed ../notebooks/sample.ipynb#fig-one-curve >}}": "must stand alone in its paragraph",
    "- item\n\n  {{< embed ../notebooks/sample.ipynb#one-records >}}": "an embed may not be indented",
    "{{< video x.mp4 >}}": "the shortcode {{< video x.mp4 >}} is outside the book's subset",
    "```{python}\n1\n```": "executed code (```{python}) is outside the book's subset",
    "![a](https://e.org/x.png)": "the picture https://e.org/x.png is not a file of the book",
    "## Twice {#sec-one-model}": "the label sec-one-model is used in chapters/one.html too",
    "## Here {#sec-here}\n\n## Again {#sec-here}": "the label sec-here stands twice on this page",
    "**14 GB**{.given} and more": "{.given} is printed as it stands",
    "A word.\n::: {.example}": "::: is printed as it stands",
    "A <b>word</b>.": "raw html (<b>) is outside the book's subset",
    "<div>block</div>": "raw html (<div>) is outside the book's subset",
}
SECOND = {
    "See @eq-none.": "unresolved cross-reference @eq-none",
    "As @nobody2020 says.": "no entry in the bibliography for @nobody2020",
    "See [@sec-one-pitfalls; @chen2016training].": "@sec-one-pitfalls stands in brackets with a citation",
    "![a](figures/none.png)": "the picture figures/none.png does not exist",
    "[a](three.qmd)": "the link three.qmd leads to no page of the book",
    "[a](one.qmd#sec-none)": "the link one.qmd#sec-none leads to no label",
    "[a](#sec-nowhere)": "the link #sec-nowhere leads to no label",
}


@pytest.mark.parametrize("faults", [FIRST, SECOND], ids=["first pass", "second pass"])
def test_every_fault_is_reported_at_once_with_its_line(sample: Path, edit: Edit, faults: dict[str, str]) -> None:
    edit("chapters/two.qmd", "Text.", "\n\n".join(["<!-- a comment is fine -->", *faults]))
    lines = (sample / "chapters/two.qmd").read_text(encoding="utf-8").splitlines()
    found = problems(sample)
    for fault, complaint in faults.items():
        matching = [line for line in found if complaint in line]
        assert matching, f"{complaint}: not among {found}"
        where = matching[0].partition(": ")[0]
        name, _, number = where.partition(":")
        assert name == "chapters/two.qmd"
        if not complaint.startswith("raw html"):
            assert lines[int(number) - 1] in fault.splitlines(), f"{complaint}: line {number}"
    assert not any("comment" in line for line in found)
    numbers = [int(line.split(":")[1]) for line in found if line.split(":")[1].isdigit()]
    assert numbers == sorted(numbers)


def test_a_value_that_cannot_be_shown_as_asked_is_named_with_its_line(sample: Path, edit: Edit) -> None:
    edit("chapters/two.qmd", "Text.", "See [one.saved]{.value unit=ms}.")
    (found,) = problems(sample)
    assert found.startswith("chapters/two.qmd:7: one.saved: cannot show B")


def test_a_value_without_a_record_is_named_with_its_line(sample: Path, edit: Edit) -> None:
    edit("chapters/two.qmd", "Text.", "See [no.such]{.value}.")
    (found,) = problems(sample)
    assert found == "chapters/two.qmd:7: no record called no.such in the executed notebooks"


def test_a_cell_with_nothing_to_show_and_a_failed_one_are_refused(sample: Path, edit: Edit) -> None:
    def empty(cell: dict[str, Any]) -> None:
        cell.update(outputs=[], execution_count=None)

    def failed(cell: dict[str, Any]) -> None:
        cell["outputs"] = [{"output_type": "error", "ename": "ValueError", "evalue": "", "traceback": []}]

    change_cell(sample, "one-exercise", empty)  # embedded with its code, which may be all that there is to show
    render_preview(sample, sample / "_book")
    shutil.rmtree(sample / "_book")
    edit("chapters/one.qmd", "#one-exercise echo=true", "#one-exercise")
    change_cell(sample, "fig-one-curve", failed)
    found = problems(sample)
    assert any("the cell one-exercise has no output" in line for line in found)
    assert any("the cell fig-one-curve ended in an error (ValueError)" in line for line in found)


def test_an_image_that_is_no_png_is_refused(sample: Path) -> None:
    def change(cell: dict[str, Any]) -> None:
        cell["outputs"][0]["data"]["image/png"] = base64.b64encode(b"GIF89a").decode()

    change_cell(sample, "fig-one-curve", change)
    assert "holds an image that is no PNG" in problems(sample)[0]


def test_a_failed_rendering_leaves_the_last_book_as_it_was(sample: Path, edit: Edit) -> None:
    book = render_preview(sample, sample / "_book").parent
    before = {path: path.read_bytes() for path in book.rglob("*") if path.is_file()}
    edit("chapters/two.qmd", "@eq-peak", "@eq-none")
    with pytest.raises(UserErrors):
        render_preview(sample, book)
    assert {path: path.read_bytes() for path in book.rglob("*") if path.is_file()} == before
    edit("chapters/two.qmd", "@eq-none", "@eq-peak")
    edit("chapters/two.qmd", "Text.", "Newer text.")
    render_preview(sample, book)
    assert "Newer text." in (book / "chapters/two.html").read_text(encoding="utf-8")
    assert list((sample / "_build").iterdir()) == []


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("chapters/two.qmd", "chapters/three.qmd", "chapters/three.qmd does not exist"),
        ("type: book", "type: website", "project.type must be book"),
        ("method: katex", "method: mathjax", "html-math-method must be {method: katex"),
        ("  - efficient-training", "  - other", "_extensions/other/_extension.yml does not exist"),
        ("book:", "book: [", "not YAML"),
        ("project:\n  type: book\n  output-dir: _book", "project: book", "project.type must be book"),
        ("chapters:", "chapters: 5  #", "not YAML"),
        ("- chapters/two.qmd", "- 5", "5 is not of type 'string'"),
        ("- chapters/preface.qmd", "- {part: x}", "'chapters' is a required property"),
        ("- chapters/preface.qmd", "- {part: x, chapters: [{a: 1}]}", "{'a': 1} is not of type 'string'"),
        ("- chapters/two.qmd", "- chapters", "chapters is not a file"),
        ("toc-depth: 3", "toc-depth: deep", "'deep' is not of type 'integer'"),
        ("  - efficient-training", "  - 5", "5 is not of type 'string'"),
        ("book:", "book:\n  page-footer: [a]\n  repo-url: 5\nx:", "invalid quarto at book"),
        ("url: assets/katex", "url: index.qmd #", "index.qmd is not a folder"),
        ("bibliography: chapters/references.bib", "bibliography: chapters", "chapters is not a file"),
    ],
)
def test_a_project_file_that_cannot_be_used(sample: Path, edit: Edit, old: str, new: str, complaint: str) -> None:
    edit("_quarto.yml", old, new)
    with pytest.raises(UserError) as caught:
        render_preview(sample, sample / "_book")
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["_quarto.yml", "index.qmd", "chapters/two.qmd"])
def test_a_source_that_is_no_text_is_named(sample: Path, name: str) -> None:
    (sample / name).write_bytes(b"\xff\xfe\0")
    with pytest.raises(UserError, match=rf"{name}: not UTF-8 text \(byte 0\); save it as UTF-8"):
        render_preview(sample, sample / "_book")


@pytest.mark.parametrize("text", ["", "contributes: 5", "contributes: {filters: x}", "\t:"])
def test_an_extension_that_cannot_be_used_is_named(sample: Path, text: str) -> None:
    (sample / "_extensions/efficient-training/_extension.yml").write_text(text)
    with pytest.raises(UserError, match=r"_extension\.yml: ") as caught:
        render_preview(sample, sample / "_book")
    assert "\n" not in str(caught.value)


def test_a_landing_page_without_a_title_is_refused(sample: Path) -> None:
    (sample / "index.qmd").write_text("")
    with pytest.raises(UserError, match=r"index\.qmd: no title"):
        render_preview(sample, sample / "_book")


def test_a_page_without_a_title_is_refused(sample: Path) -> None:
    (sample / "chapters/two.qmd").write_text("Text.\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"two\.qmd: no title; begin the page with '# Title \{#sec-name\}'"):
        render_preview(sample, sample / "_book")
