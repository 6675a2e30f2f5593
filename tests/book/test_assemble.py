import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from sample_project import PNG, PROVENANCE, code, figure, notebook, shown, write_notebook

from efficient_training.book.assemble import BORROWED, assemble, borrow, mark_caption, merge, taken
from efficient_training.display import METADATA_KEY
from efficient_training.errors import UserError
from efficient_training.records import Record

EDITION = {**PROVENANCE, "edition": "lab-gpu", "tier": "gpu"}


def peak(value: int) -> dict[str, Any]:
    made: dict[str, Any] = shown(Record("memory.peak", value, "B", "measured"))
    return made


@pytest.fixture
def root(tmp_path: Path) -> Path:
    files = {
        "_quarto.yml": "project: {type: book}\n",
        "index.qmd": "# Book\n",
        "chapters/01-memory.qmd": "# Memory\n",
        "chapters/references.bib": "",
        "_extensions/efficient-training/_extension.yml": "title: x\n",
        "assets/katex/katex.min.css": "",
        "environments/gpu/tier.yml": "name: gpu\ntitle: One GPU\nrequires: {device: cuda}\nparameters: {}\n",
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
    theirs = {**EDITION, "edition": "other"}
    write_notebook(root / "results" / "other" / "01-memory.ipynb", [code("x", [peak(300)])], theirs)
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


def test_a_notebook_that_the_book_does_not_have_is_left_out(root: Path) -> None:
    write_notebook(root / "results" / "lab-gpu" / "07-new.ipynb", [], EDITION)
    assert not (assemble(root, "lab-gpu") / "notebooks" / "07-new.ipynb").exists()


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


def test_text_cannot_leave_its_code_block() -> None:
    text = "a\n```\n<b>\n~~~~\n{{< include x >}}"
    stream = taken({"output_type": "stream", "name": "stdout", "text": text.splitlines(keepends=True)})
    plain = taken({"output_type": "display_data", "data": {"text/plain": text}, "metadata": {}})
    for made in (stream["text"], plain["data"]["text/plain"]):
        assert not any(mark in made for mark in ("```", "~~~", "{{<"))
        assert made.replace("\u200b", "") == text


def test_warnings_of_an_edition_stay_out_of_the_book() -> None:
    streams = [{"output_type": "stream", "name": name, "text": name} for name in ("stdout", "stderr")]
    made = merge(notebook([code("x")]), notebook([code("x", streams)], EDITION))
    assert [output["text"] for output in made["cells"][2]["outputs"]] == ["stdout"]


def test_an_edition_with_html_is_refused(root: Path) -> None:
    html = {"output_type": "display_data", "data": {"text/html": "<b>x</b>"}, "metadata": {}}
    write_notebook(root / "results" / "lab-gpu" / "01-memory.ipynb", [code("x", [html])], EDITION)
    with pytest.raises(UserError, match="text/html"):
        assemble(root, "lab-gpu")
