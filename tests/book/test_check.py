import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sample_project import PNG, PROVENANCE, code, figure, notebook, shown, table

from efficient_training import notebook as nb
from efficient_training.book.check import Counts, Problem, check, counts, survey
from efficient_training.book.check.bindings import value_fault
from efficient_training.book.check.panache import executable
from efficient_training.book.check.quantities import quantities, sentences
from efficient_training.claims import Claim
from efficient_training.display import METADATA_KEY
from efficient_training.errors import UserError
from efficient_training.provenance import source_hash
from efficient_training.records import Record

CHAPTER = """# Memory {#sec-memory}

The peak is [memory.peak]{.value unit="MiB" fmt=".1f"}, that is [memory.reduction]{.value fmt=".2f"} less, and
[it halves when blocks are checkpointed]{.claim name="memory.halves"} [@chen2016training, p. 3].
A block of 24 layers, 8 heads and 4 steps, in a 16-bit format, of a 7B model, runs twice. Others
saw 14 GB [@chen2016training]. With $16\\Psi$ bytes and `4 GB`, $2^{30}$ bytes are one GiB.

{{< embed ../notebooks/01-memory.ipynb#fig-memory-peak >}}

As @fig-memory-peak, @tbl-memory-sizes, @sec-memory-exercises and @eq-memory show, see [there](#sec-memory-more) and
[the other page](02-precision.qmd#sec-precision) and [its file](../notebooks/01-memory.ipynb).[^1]

[^1]: A note with [memory.peak]{.value}.

$$
M = \\Psi \\times 16
$$ {#eq-memory}

| size | bytes |
|:-----|------:|
| one  | [memory.peak]{.value unit="-"} |
| their| 12 GB [@chen2016training] |

: Sizes. {#tbl-memory-sizes}

![A picture](picture.png){#fig-memory-picture fig-alt="What it shows."}

::: {.panel-tabset}
### First

One.

### Second

Two.
:::

::: {.example}
A card of [24 GB]{.given}.
:::

::: {.callout-note title="Definition: GiB"}
One GiB is [1,073,741,824 bytes]{.given}.
:::

```python
x = "{{< embed >}} 5 GB"
```

## More {#sec-memory-more}

{{< embed ../notebooks/01-memory.ipynb#memory-solution echo=true >}}

## Exercises {#sec-memory-exercises}

1. A model of [14 GB]{.given}, in [3 s]{.given}?

   ::: {.callout-tip title="Solution" collapse="true"}
   {{< embed ../notebooks/01-memory.ipynb#tbl-memory-solution echo=true >}}
   :::
"""
SECOND = "# Precision {#sec-precision}\n\nNothing yet.\n"
BIBLIOGRAPHY = "@article{chen2016training,\n title = {T}, author = {A, B}, year = {2016}, journal = {J}\n}\n"
CONFIG = """project: {type: book}
book:
  title: T
  chapters:
    - index.qmd
    - part: One
      chapters: [chapters/01-memory.qmd, chapters/02-precision.qmd]
bibliography: chapters/references.bib
"""
RESULTS: list[Record | Claim] = [
    Record("memory.peak", 1310720, "B", "measured"),
    Record("memory.reduction", 2.5, "ratio", "derived"),
    Claim("memory.halves", "the peak falls by 2×", "everywhere", True, ("memory.peak",), "memory.peak = 1,310,720 B"),
]


CAPTION = '#| label: fig-memory-peak\n#| fig-cap: "%s"\n#| fig-alt: "%s"\nplot()'


def cells() -> list[dict[str, Any]]:
    return [
        code('#| label: fig-memory-peak\n#| fig-cap: "Peak"\n#| fig-alt: "A bar"\nplot()', [figure()]),
        code("#| label: memory-solution\nrecord()", [shown(item) for item in RESULTS]),
        code('#| label: tbl-memory-solution\n#| tbl-cap: "Table"\ntable()', [table("| a |\n|---|\n| 1 |")]),
    ]


def write(path: Path, made: dict[str, Any]) -> None:
    """Write a notebook, stamped as fresh where it carries provenance."""
    if METADATA_KEY in made["metadata"]:
        path.write_text(json.dumps(made))
        made["metadata"][METADATA_KEY]["source"] = source_hash(nb.read(path))
    path.write_text(json.dumps(made, indent=1))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_book(tmp_path)


def make_book(tmp_path: Path) -> Path:
    for folder in ("chapters", "notebooks"):
        (tmp_path / folder).mkdir()
    (tmp_path / "_quarto.yml").write_text(CONFIG)
    (tmp_path / "index.qmd").write_text("# Book {.unnumbered}\n\nSee @sec-memory.\n")
    (tmp_path / "chapters" / "01-memory.qmd").write_text(CHAPTER)
    (tmp_path / "chapters" / "02-precision.qmd").write_text(SECOND)
    (tmp_path / "chapters" / "references.bib").write_text(BIBLIOGRAPHY)
    (tmp_path / "chapters" / "picture.png").write_bytes(b"")
    write(tmp_path / "notebooks" / "01-memory.ipynb", notebook(cells()))
    return tmp_path


def messages(root: Path) -> list[str]:
    return [str(problem) for problem in check(root)]


def test_a_good_book_has_no_problems(root: Path) -> None:
    assert messages(root) == []


def test_the_numbers_of_each_page_are_counted(root: Path) -> None:
    assert counts(root) == {
        "index.qmd": Counts(),
        "chapters/01-memory.qmd": Counts(bound=5, cited=2, given=4),
        "chapters/02-precision.qmd": Counts(),
    }


def test_a_problem_is_one_line_with_its_place() -> None:
    assert str(Problem(Path("chapters/a.qmd"), 3, "what; what to do")) == "chapters/a.qmd:3: what; what to do"


BROKEN = [
    ("[memory.nothing]{.value}", "no record called 'memory.nothing'"),
    ("[memory.peek]{.value}", "did you mean 'memory.peak'?"),
    ("[memory.halves]{.value}", "there is a claim of that name"),
    ("[x]{.claim name=memory.nothing}", "no claim called 'memory.nothing'"),
    ("[x]{.claim}", "no claim called ''"),
    ('[memory.peak]{.value fmt="wide"}', "bad fmt wide"),
    ('[memory.reduction]{.value fmt="d"}', "needs a whole number"),
    ('[memory.peak]{.value unit="XB"}', "unknown unit XB"),
    ('[memory.peak]{.value unit="ms"}', "cannot show B (bytes) as ms (time)"),
    ('[memory.peak]{.value format="d"}', "unknown attribute format"),
    ("[memory.peak]{.value .given}", "has the classes given, value"),
    ("## Of [memory.nothing]{.value}", "no record called"),
    ("Note.[^9]\n\n[^9]: With [memory.nothing]{.value}.", "no record called"),
    ("| a |\n|---|\n| [memory.nothing]{.value} |", "no record called"),
    ("It takes 14 GB.", "the quantity '14 GB' is typed by hand; bind it"),
    ("It takes 14GB of memory.", "'14GB'"),
    ("It takes *14* GB.", "'14 GB'"),
    ("It takes 14\u00a0GiB.", "'14\\xa0GiB'"),
    ("It takes 1,280 KiB.", "'1,280 KiB'"),
    ("Between 2 and 5 GiB.", "'2 and 5 GiB'"),
    ("A 24-GB card.", "'24-GB'"),
    ("In 3.5 s.", "'3.5 s'"),
    ("Some 25% less.", "'25%'"),
    ("Some 25 percent less.", "'25 percent'"),
    ("It is 2.5× smaller.", "'2.5×'"),
    ("It is 2x smaller.", "'2x'"),
    ("It is $2\\times$ smaller.", "'2×'"),
    ("It is 3 times faster.", "'3 times'"),
    ("It is three times faster.", "'three times'"),
    ("A 4-fold gain.", "'4-fold'"),
    ("A tenfold gain.", "'tenfold'"),
    ("Over 4096 tokens.", "'4096 tokens'"),
    ("Over 10^12^ FLOP.", "'10^12 FLOP'"),
    ("Of 16 bytes per parameter.", "'16 bytes'"),
    ("Of sixteen bytes.", "'sixteen bytes'"),
    ("It says [@chen2016training]. It takes 14 GB.", "'14 GB'"),
    ("See @fig-memory-peak: 14 GB.", "'14 GB'"),
    ("| a |\n|---|\n| 14 GB |", "'14 GB'"),
    ("- item\n- of 14 GB", "'14 GB'"),
    ("Note.[^9]\n\n[^9]: Of 14 GB.", "'14 GB'"),
    ("[it is 3× less]{.claim name=memory.halves}", "in the claim memory.halves is not in its statement"),
    ("::: {.example}\nOf 14 GB.\n:::", "'14 GB' is typed by hand; mark it"),
    ("A card of [24 GB]{.given}.", "stands outside an exercise"),
    ("::: {.callout-note title='Mind'}\nOf [24 GB]{.given}.\n:::", "stands outside an exercise"),
    ("See @fig-nothing.", "unresolved cross-reference @fig-nothing"),
    ("See @tbl-nothing.", "unresolved cross-reference @tbl-nothing"),
    ("See @eq-nothing.", "unresolved cross-reference @eq-nothing"),
    ("See @sec-nothing.", "unresolved cross-reference @sec-nothing"),
    ("See @lst-nothing.", "unresolved cross-reference @lst-nothing"),
    ("See [@nothing2020].", "no entry nothing2020 in the bibliography"),
    ("See [@chen2016training; @sec-memory].", "in brackets of their own"),
    ("## Again {#sec-memory-more}", "the label sec-memory-more stands at chapters/01-memory.qmd"),
    ("## Again {#sec-memory-exercises}", "the label sec-memory-exercises"),
    ("{{< embed ../notebooks/01-memory.ipynb#fig-memory-peak >}}", "stands at chapters/01-memory.qmd:8 too"),
    ("![No text](picture.png)", "has no alternative text"),
    ("![x](nothing.png){fig-alt='x'}", "the picture nothing.png does not exist"),
    ("![x](https://example.com/x.png){fig-alt='x'}", "is not a file of the book"),
    ("{{< embed ../notebooks/09-none.ipynb#fig-a >}}", "09-none.ipynb: no such notebook"),
    ("{{< embed ../notebooks/01-memory.ipynb#fig-none >}}", "has no cell labelled fig-none"),
    ("{{< embed ../notebooks/01-memory.ipynb >}}", "cannot read the embed"),
    ("Text\n{{< embed ../notebooks/01-memory.ipynb#memory-solution >}}", "must stand alone"),
    ("Text {{< embed ../notebooks/01-memory.ipynb#memory-solution >}}", "must stand alone"),
    ("{{< video x.mp4 >}}", "only embed is in the subset"),
    ("[x](03-nothing.qmd)", "leads to no page of the book"),
    ("[x](02-precision.qmd#sec-nothing)", "leads to no anchor of chapters/02-precision.qmd"),
    ("[x](#sec-nothing)", "leads to no anchor"),
    ("[x](../nothing.txt)", "leads to no file"),
    ("<div>raw</div>", "raw html (<div>) is outside the subset"),
    ("a <b>b</b>", "raw html (<b>)"),
    ("`x`{=html}", "raw html (x)"),
    ("\\newpage", "raw tex"),
    ("```mermaid\ngraph\n```", "a mermaid diagram"),
    ("```{mermaid}\ngraph\n```", "an executed cell (mermaid)"),
    ("```{python}\nx\n```", "an executed cell (python)"),
    ("::: {.column-margin}\nx\n:::", "a block of class column-margin"),
    ("::: {#fig-div}\nx\n\ncaption\n:::", "a block of no class (#fig-div)"),
    ("[x]{.aside}", "a span of class aside"),
    ("term\n: A definition.\n  (@sec-one)", "a line that begins with (@ is read as a numbered example"),
    ("# Second title", "a page has one title"),
]
GOOD = [
    "The first 24 blocks, 8 heads, K = 4, 3 layers and 100 steps.",
    "A 16-bit format, an 8-bit optimizer, fp32, bf16, E4M3, int8, Qwen2.5-0.5B, a 70B model, ZeRO-3.",
    "It runs twice, and half precision is half of it, several times.",
    "A batch of 4 × 64 and a 3 × 3 grid; `14 GB`; $2^{30}$ bytes; $16\\Psi$ bytes.",
    "In 2016 and the 1990s; version 2.13.0; chapter 3; PyTorch 2.11 or later.",
    "See <https://example.com/14GB> and [14](https://example.com).",
    "Others saw 14 GB, 25% and 2× [@chen2016training].",
    "As @chen2016training says, e.g. about 14 GB, it is much.",
    "<!-- a comment with 14 GB -->",
    "GiB\n: Of [1,073,741,824 bytes]{.given}.",
    "[it falls by 2×]{.claim name=memory.halves}",
    "[it falls by [memory.reduction]{.value}]{.claim name=memory.halves}",
    "`{{< embed >}}`",
    "[x](mailto:a@example.com)",
]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Problem]]:
    """Each text on a page of its own, all in one book, checked once: the problems by text."""
    root = make_book(tmp_path_factory.mktemp("book"))
    pages = {}
    for number, text in enumerate([*(text for text, _ in BROKEN), *GOOD], start=10):
        pages[text] = f"chapters/{number}-page.qmd"
        (root / pages[text]).write_text(f"# Page {{#sec-page-{number}}}\n\nBefore.\n\n{text}\n\nAfter.\n")
    listed = ", ".join(["chapters/01-memory.qmd", *pages.values()])
    (root / "_quarto.yml").write_text(CONFIG.replace("chapters/01-memory.qmd", listed))
    problems = check(root)
    return {text: [item for item in problems if item.path.as_posix() == page] for text, page in pages.items()}


@pytest.mark.parametrize(("text", "complaint"), BROKEN)
def test_a_broken_chapter_is_caught(found: dict[str, list[Problem]], text: str, complaint: str) -> None:
    lines = [problem.line for problem in found[text] if complaint in problem.message]
    assert lines, found[text]
    assert all(5 <= line <= 5 + text.count("\n") for line in lines), found[text]


@pytest.mark.parametrize("text", GOOD)
def test_a_good_chapter_is_left_alone(found: dict[str, list[Problem]], text: str) -> None:
    assert found[text] == []


def test_sentences_end_where_they_end() -> None:
    text = "It is 2.5 GB, e.g. here. Next one (see Fig. 3)! Last"
    assert list(sentences(text)) == ["It is 2.5 GB, e.g. here. ", "Next one (see Fig. 3)! ", "Last"]


def test_a_quantity_is_read_whole() -> None:
    assert quantities("from 1.5 to 2.5 GB/s, then 3e9 FLOP/s") == ["1.5 to 2.5 GB", "3e9 FLOP"]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda made: made["cells"][2].update(source='#| label: fig-memory-peak\n#| fig-cap: "Peak"\nx'), "no fig-alt"),
        (lambda made: made["cells"][2].update(source='#| label: fig-memory-peak\n#| fig-alt: "A"\nx'), "no fig-cap"),
        (lambda made: made["cells"][4].update(source="#| label: tbl-memory-solution\nx"), "no tbl-cap"),
        (lambda made: made["cells"][2].update(outputs=[]), "has no output"),
        (lambda made: made["cells"][2].update(source=CAPTION % ("Of 14 GB", "A")), "the quantity '14 GB'"),
        (lambda made: made["cells"][2].update(source=CAPTION % ("[no.name]{.value}", "A")), "no record called"),
        (lambda made: made["cells"][2].update(source=CAPTION % ("Of @fig-no", "A")), "cross-reference @fig-no"),
        (lambda made: made["cells"][2].update(source=CAPTION % ("Of [@no2020]", "A")), "no entry no2020"),
        (lambda made: made["cells"][2].update(source=CAPTION % ("Peak", "From 14 GB")), "types the quantity '14 GB'"),
        (lambda made: made["cells"][4].update(source="#| label: memory-solution\nx"), "two cells are labelled"),
        (
            lambda made: made["cells"][2]["outputs"].append(
                {"output_type": "error", "ename": "ValueError", "evalue": "x", "traceback": []}
            ),
            "cell 3 ended in ValueError",
        ),
        (
            lambda made: made["cells"][2]["outputs"].append({"output_type": "stream", "name": "stderr", "text": "w"}),
            "cell 3 writes to stderr",
        ),
        (
            lambda made: made["cells"][2]["metadata"].update(execution={"iopub": "x"}),
            "the metadata of 1 of 5 cells hold execution",
        ),
        (lambda made: made["metadata"].update(papermill={"x": 1}), "the metadata hold papermill"),
        (
            lambda made: made["cells"][2]["outputs"].append(
                {"output_type": "stream", "name": "stdout", "text": "in /home/me/book"}
            ),
            "names a path of one machine (/home/me)",
        ),
        (lambda made: made["cells"][1]["metadata"].clear(), "no cell is tagged parameters"),
        (lambda made: made["cells"][2]["metadata"].update(tags=["injected-parameters"]), "injected parameters"),
        (lambda made: made["metadata"].pop("kernelspec"), "kernelspec is missing"),
        (lambda made: made["cells"][0].pop("id"), "cell 1 has no id"),
        (lambda made: made["metadata"].pop(METADATA_KEY), "missing: not executed yet"),
        (
            lambda made: made["cells"][3]["outputs"].append(
                shown(Claim("memory.false", "s", "everywhere", False, ("memory.peak",), "memory.peak = 9 B"))
            ),
            "the everywhere-claim memory.false was not held: memory.peak = 9 B",
        ),
        (
            lambda made: made["cells"][3]["outputs"][0]["metadata"][METADATA_KEY].update(unit="furlong"),
            "unknown unit 'furlong'",
        ),
    ],
)
def test_a_broken_notebook_is_caught(root: Path, change: Callable[[Any], None], complaint: str) -> None:
    made = notebook(cells())
    change(made)
    path = root / "notebooks" / "01-memory.ipynb"
    if complaint == "cell 1 has no id":
        path.write_text(json.dumps(made))
    else:
        write(path, made)
    assert any(complaint in message for message in messages(root)), messages(root)


def test_a_stale_notebook_is_caught(root: Path) -> None:
    path = root / "notebooks" / "01-memory.ipynb"
    path.write_text(path.read_text().replace("plot()", "plot_otherwise()"))
    assert [message for message in messages(root) if "01-memory.ipynb:1: stale" in message]


def test_a_false_hardware_claim_is_no_problem(root: Path) -> None:
    made = notebook(cells())
    made["cells"][3]["outputs"].append(shown(Claim("memory.slow", "s", "hardware", False, ("memory.peak",), "e")))
    write(root / "notebooks" / "01-memory.ipynb", made)
    assert messages(root) == []


def test_a_name_in_two_notebooks_is_caught(root: Path) -> None:
    write(root / "notebooks" / "02-precision.ipynb", notebook([code("x", [shown(RESULTS[0])])]))
    assert [message for message in messages(root) if "memory.peak is also used in 01-memory.ipynb" in message]


def test_a_file_that_is_no_notebook_is_caught(root: Path) -> None:
    (root / "notebooks" / "02-precision.ipynb").write_text("{")
    assert any(message.startswith("notebooks/02-precision.ipynb:1: ") for message in messages(root))


def test_pages_and_project_must_agree(root: Path) -> None:
    (root / "chapters" / "02-precision.qmd").rename(root / "chapters" / "03-new.qmd")
    (root / "chapters" / "01-memory.qmd").write_text("# Memory {#sec-memory}\n")
    found = messages(root)
    assert "_quarto.yml:7: the page chapters/02-precision.qmd does not exist" in found
    assert any(message.startswith("chapters/03-new.qmd:1: the page is not listed") for message in found)


def test_an_editions_notebooks_are_checked_too(root: Path) -> None:
    folder = root / "results" / "lab-gpu"
    folder.mkdir(parents=True)
    false = Claim("memory.halves", "s", "everywhere", False, ("memory.peak",), "memory.peak = 9 B")
    write(
        folder / "01-memory.ipynb",
        notebook([code("x", [shown(RESULTS[0]), shown(false)])], {**PROVENANCE, "edition": "lab-gpu"}),
    )
    assert check(root) == []
    (problem,) = check(root, "lab-gpu")
    assert problem.path == Path("results/lab-gpu/01-memory.ipynb")
    assert "the everywhere-claim memory.halves was not held" in problem.message
    with pytest.raises(UserError, match="no such edition"):
        check(root, "nowhere")


def test_a_folder_without_a_book_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"_quarto\.yml: no such file"):
        check(tmp_path)


@pytest.mark.skipif(executable() is None, reason="panache is not installed")
def test_what_panache_finds_is_folded_in(root: Path) -> None:
    (root / "chapters" / "02-precision.qmd").write_text(f"{SECOND}\nNote.[^9]\n")
    (message,) = messages(root)
    assert message.startswith("chapters/02-precision.qmd:5: ")
    assert "(panache: undefined-footnote-id)" in message


def test_the_check_imports_no_torch(root: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from efficient_training.book.check import survey;"
        f"survey(Path({str(root)!r})); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_ten_long_chapters_take_few_seconds(root: Path) -> None:
    import time

    names = [f"chapters/{number:02}-copy.qmd" for number in range(10, 20)]
    for name in names:
        body = CHAPTER.split("## More")[0].split("{{<")[0].split("\n", 1)[1]
        (root / name).write_text(f"# T\n{body * 40}")
    shutil.copy(root / "notebooks" / "01-memory.ipynb", root / "copy.ipynb")
    (root / "_quarto.yml").write_text(
        CONFIG.replace("[chapters/01-memory.qmd,", f"[{', '.join(names)}, chapters/01-memory.qmd,")
    )
    start = time.process_time()
    assert survey(root).problems == []
    assert time.process_time() - start < 3


SPANS = [
    (None, None),
    ("d", None),
    (",d", "KiB"),
    (",.1f", "MiB"),
    (".3g", None),
    (".2e", None),
    (".1%", None),
    (",.1%", None),
    (",.2g", None),
    ("", None),
    (".f", None),
    (".123f", None),
    ("x", None),
    (None, "-"),
    (None, "ms"),
    (None, "percent"),
    (None, "XB"),
    (".0%", "percent"),
    ("d", "percent"),
]
RECORDS = [
    Record("memory.peak", 1310720, "B", "measured"),
    Record("memory.reduction", 2.5, "ratio", "derived"),
    Record("memory.share", 0.25, "fraction", "derived"),
    Record("memory.third", 0.333, "fraction", "derived"),
    Record("memory.plain", -1e-9, "1", "derived"),
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: str(record.name))
def test_the_check_and_the_filter_refuse_the_same(root: Path, record: Record) -> None:
    import os

    import pypandoc

    lua = Path(__file__).parents[2] / "_extensions" / "efficient-training" / "efficient-training.lua"
    write(root / "notebooks" / "01-memory.ipynb", notebook([code("x", [shown(record)])]))
    spans = []
    for number, (fmt, unit) in enumerate(SPANS):
        attributes = [f'fmt="{fmt}"'] * (fmt is not None) + [f'unit="{unit}"'] * (unit is not None)
        spans.append(f"{number}: [{record.name}]{{.value {' '.join(attributes)}}}")
    (root / "edition.json").write_text('{"edition": "other"}')  # so that all are told, not only the first
    command = [pypandoc.get_pandoc_path(), "-f", "markdown", "-t", "html", "--wrap=none", "--lua-filter", str(lua)]
    env = {**os.environ, "QUARTO_PROJECT_DIR": str(root)}
    page = subprocess.run(command, input="\n\n".join(spans), capture_output=True, text=True, env=env, check=True).stdout
    refused = [int(line.split(":")[0].removeprefix("<p>")) for line in page.splitlines() if "binding-error" in line]
    assert refused == [number for number, (fmt, unit) in enumerate(SPANS) if value_fault(record, fmt, unit)]


def test_the_sample_picture_is_a_png() -> None:
    assert PNG.startswith("iVBORw0KGgo")
