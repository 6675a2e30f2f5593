import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from sample_project import PNG, PROVENANCE, code, figure, notebook, shown, table, write_notebook

from efficient_training.book.assemble import BORROWED, assemble, borrow, mark_caption, merge
from efficient_training.book.outputs import inert, is_plain_markdown, safe_outputs
from efficient_training.display import METADATA_KEY
from efficient_training.errors import UserError
from efficient_training.records import Record

EDITION = {**PROVENANCE, "edition": "lab-gpu", "tier": "gpu"}


def peak(value: int) -> dict[str, Any]:
    return shown(Record("memory.peak", value, "B", "measured"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    files = {
        "_quarto.yml": "project: {type: book}\n",
        "index.qmd": "# Book\n",
        "chapters/01-memory.qmd": "# Memory\n",
        "chapters/references.bib": "",
        "_extensions/efficient-training/_extension.yml": "title: x\n",
        "assets/katex/katex.min.css": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    caption = '#| label: fig-a\n#| fig-cap: "Peak, by phase"\nplot()'
    write_notebook(tmp_path / "notebooks" / "01-memory.ipynb", [code("x", [peak(100)]), code(caption, [figure()])])
    write_notebook(tmp_path / "notebooks" / "02-other.ipynb", [code(caption, [figure()])])
    write_notebook(
        tmp_path / "results" / "lab-gpu" / "01-memory.ipynb",
        [code("x", [peak(200)]), code(caption, [figure()])],
        EDITION,
    )
    return tmp_path


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def read(path: Path) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(path.read_text())
    return made


def records(made: Mapping[str, Any]) -> list[Any]:
    outputs = [output for cell in made["cells"] for output in cell.get("outputs", [])]
    return [output["metadata"][METADATA_KEY]["value"] for output in outputs if METADATA_KEY in output["metadata"]]


def test_an_edition_is_assembled_beside_the_sources(root: Path) -> None:
    before = contents(root)
    made = assemble(root, "lab-gpu")
    assert made == root / "_build" / "lab-gpu"
    after = {name: data for name, data in contents(root).items() if not name.startswith("_build")}
    assert after == before
    names = set(contents(made))
    assert {"_quarto.yml", "index.qmd", "chapters/01-memory.qmd", "chapters/references.bib", "edition.json"} <= names
    assert "assets/katex/katex.min.css" in names
    assert records(read(made / "notebooks" / "01-memory.ipynb")) == [200]
    assert records(read(made / "reference" / "01-memory.ipynb")) == [100]
    assert read(made / "notebooks" / "01-memory.ipynb")["metadata"][METADATA_KEY]["edition"] == "lab-gpu"


def test_the_reference_needs_no_assembly(root: Path) -> None:
    assert assemble(root, "reference") == root
    assert not (root / "_build").exists()


def test_what_is_borrowed_and_what_is_stale_is_written_down(root: Path) -> None:
    info = read(assemble(root, "lab-gpu") / "edition.json")
    assert info == {"edition": "lab-gpu", "borrowed": ["02-other"], "stale": ["01-memory"]}
    borrowed = read(root / "_build" / "lab-gpu" / "notebooks" / "02-other.ipynb")
    assert BORROWED in borrowed["cells"][2]["source"]


def test_a_fresh_edition_is_not_stale(root: Path) -> None:
    from efficient_training import notebook as nb
    from efficient_training.provenance import source_hash

    made = {**EDITION, "source": source_hash(nb.read(root / "notebooks" / "01-memory.ipynb"))}
    path = root / "results" / "lab-gpu" / "01-memory.ipynb"
    cells = read(path)["cells"][2:]
    write_notebook(path, cells, made)
    assert read(assemble(root, "lab-gpu") / "edition.json")["stale"] == []


def test_a_second_assembly_leaves_nothing_of_the_first(root: Path) -> None:
    made = assemble(root, "lab-gpu")
    (made / "chapters" / "99-old.qmd").write_text("old")
    (root / "chapters" / "01-memory.qmd").write_text("# New\n")
    assemble(root, "lab-gpu")
    assert not (made / "chapters" / "99-old.qmd").exists()
    assert (made / "chapters" / "01-memory.qmd").read_text() == "# New\n"
    assert [path.name for path in (root / "_build").iterdir()] == ["lab-gpu"]


def test_two_editions_stand_side_by_side(root: Path) -> None:
    write_notebook(root / "results" / "other" / "01-memory.ipynb", [code("x", [peak(300)])], EDITION)
    first, second = assemble(root, "lab-gpu"), assemble(root, "other")
    assert records(read(first / "notebooks" / "01-memory.ipynb")) == [200]
    assert records(read(second / "notebooks" / "01-memory.ipynb")) == [300]


@pytest.mark.parametrize("edition", ["nowhere", "../../etc", "Capital", ""])
def test_an_edition_that_is_not_there_is_refused(root: Path, edition: str) -> None:
    with pytest.raises(UserError, match=r"no such edition|edition's name"):
        assemble(root, edition)


def test_an_invalid_edition_leaves_the_last_assembly_in_place(root: Path) -> None:
    before = contents(assemble(root, "lab-gpu"))
    bad = peak(1)
    bad["metadata"][METADATA_KEY]["unit"] = "furlong"
    write_notebook(root / "results" / "lab-gpu" / "01-memory.ipynb", [code("x", [bad])], EDITION)
    with pytest.raises(UserError, match="furlong"):
        assemble(root, "lab-gpu")
    assert contents(root / "_build" / "lab-gpu") == before


def test_a_notebook_that_the_book_does_not_have_is_refused(root: Path) -> None:
    write_notebook(root / "results" / "lab-gpu" / "07-new.ipynb", [], EDITION)
    with pytest.raises(UserError, match=r"07-new.ipynb: the book has no notebook"):
        assemble(root, "lab-gpu")


def test_only_outputs_are_taken_from_an_edition() -> None:
    ours = notebook([code("ours", [peak(1)]), code("#| fig-cap: C\nnew", [peak(2), figure()])])
    theirs = notebook([code("theirs", [peak(10)])], EDITION)
    made = merge(ours, theirs)
    assert [cell["source"] for cell in made["cells"][2:]] == ["ours", f'#| fig-cap: "C {BORROWED}"\nnew']
    assert records(made) == [10]
    assert made["cells"][3]["outputs"][1]["data"]["image/png"] == PNG
    assert ours == notebook([code("ours", [peak(1)]), code("#| fig-cap: C\nnew", [peak(2), figure()])])


def test_an_edition_without_provenance_does_not_get_the_references() -> None:
    assert METADATA_KEY not in merge(notebook([]), notebook([], None))["metadata"]


@pytest.mark.parametrize(
    ("source", "marked"),
    [
        ("#| label: fig-a\n#| fig-cap: Plain text\nx", f'#| label: fig-a\n#| fig-cap: "Plain text {BORROWED}"\nx'),
        ('#| tbl-cap: "Quoted: text"\nx', f'#| tbl-cap: "Quoted: text {BORROWED}"\nx'),
        (
            "#| fig-cap: >\n#|   On two\n#|   lines\n#| fig-alt: a\nx",
            f'#| fig-cap: "On two lines {BORROWED}"\n#| fig-alt: a\nx',
        ),
        ("#| label: memory-peak\nx", "#| label: memory-peak\nx"),
    ],
)
def test_a_borrowed_caption_says_so(source: str, marked: str) -> None:
    assert mark_caption(source) == marked


def test_borrowing_changes_no_input() -> None:
    ours = notebook([code("#| fig-cap: C\nx", [figure()])])
    before = json.dumps(ours)
    borrow(ours)
    assert json.dumps(ours) == before


@pytest.mark.parametrize(
    "output",
    [
        {"output_type": "display_data", "data": {"text/html": "<b>x</b>"}, "metadata": {}},
        {"output_type": "display_data", "data": {"image/svg+xml": "<svg/>"}, "metadata": {}},
        {"output_type": "display_data", "data": {"application/javascript": "alert(1)"}, "metadata": {}},
        {"output_type": "display_data", "data": {"image/png": "bm90IGEgcG5n"}, "metadata": {}},
        {"output_type": "stream", "name": "stderr", "text": "warning"},
        {"output_type": "error", "ename": "E", "evalue": "", "traceback": []},
        {"output_type": "display_data", "data": None, "metadata": {}},
        "text",
    ],
)
def test_outputs_that_are_not_text_or_picture_are_dropped(output: object) -> None:
    assert safe_outputs([output]) == []


def test_harmless_outputs_pass() -> None:
    outputs = [
        figure(),
        table("| a |\n|---|\n| 1 |"),
        peak(3),
        {"output_type": "stream", "name": "stdout", "text": "x\n"},
    ]
    assert safe_outputs(outputs) == outputs


@pytest.mark.parametrize(
    "text",
    [
        "<script>alert(1)</script>",
        "a <b>b</b>",
        "| a |\n|---|\n| <i>1</i> |",
        "[link](javascript:alert(1))",
        "![x](http://example.com/x.png)",
        "[x]{onclick='alert(1)'}",
        "`x`{onclick='alert(1)'}",
        "`<b>`{=html}",
        "| a |\n|---|\n| 1 |\n\n: C {onclick='alert(1)'}",
        "::: {.value}\nx\n:::",
        "# Heading",
        "```{=html}\n<b>\n```",
        "---\ntitle: x\n---\n",
        "See @fig-a",
        "{{< include secret >}}",
        "<http://example.com>",
    ],
)
def test_markdown_that_is_more_than_text_is_dropped(text: str) -> None:
    assert not is_plain_markdown(text)
    (output,) = safe_outputs([table(text)])
    assert set(output["data"]) == {"text/plain"}


@pytest.mark.parametrize(
    "text", ["| a | b |\n|:--|--:|\n| x < y | $\\Psi$ |\n| `c` | **1,280** |", "plain *text*", "a `code`"]
)
def test_plain_markdown_passes(text: str) -> None:
    assert is_plain_markdown(text)


def test_text_cannot_leave_its_code_block() -> None:
    text = inert("a\n```\n<b>\n~~~~\n{{< include x >}}")
    assert "```" not in text
    assert "~~~" not in text
    assert "{{<" not in text
