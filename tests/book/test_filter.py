import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pypandoc
import pytest
from sample_project import PROVENANCE, code, shown, write_notebook

from efficient_training.claims import Claim
from efficient_training.records import ANY, Record

FILTER = Path(__file__).parents[2] / "_extensions" / "efficient-training" / "efficient-training.lua"
GPU = {
    **PROVENANCE,
    "edition": "lab-gpu",
    "tier": "gpu",
    "machine": {
        **PROVENANCE["machine"],
        "gpus": [{"name": "H100", "memory_bytes": 8 * 10**10, "capability": "9.0"}] * 2,
    },
}
RECORDS: list[Record | Claim] = [
    Record("memory.reduction", 2.5, "ratio", "derived"),
    Record("memory.peak", 1310720, "B", "measured", conditions={"batch_size": 128, "dtype": "float32"}),
    Record("memory.share", 0.25, "fraction", "derived"),
    Record("memory.error", -0.003864, "1", "measured"),
    Record("memory.count", 9344, "count", "derived"),
    Record("memory.one", 1, "token", "derived"),
    Record("memory.none", 0.0, "ratio", "measured"),
    Record("memory.time", 0.0123456, "s", "measured", tolerance=ANY),
    Record("memory.fp8", None, "s", "measured", reason="not run here: needs <b>compute capability</b> 9.0"),
    Record("memory.tricky", 3, "count", "derived", conditions={"note": '"><script>alert(1)</script>'}),
]
CLAIMS = [
    Claim("memory.holds", "it holds", "everywhere", True, ("memory.peak",), "memory.peak = 1,310,720 B"),
    Claim("memory.fails", "it fails", "hardware", False, ("memory.peak",), "memory.peak = 1,310,720 B"),
    Claim("memory.unknown", "not run", "hardware", None, ("memory.fp8",), "", "not run here: needs fp8"),
]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_notebook(
        tmp_path / "notebooks" / "01-memory.ipynb", [code("x", [shown(item) for item in [*RECORDS, *CLAIMS]])]
    )
    return tmp_path


def pandoc(text: str, root: Path, to: str = "html") -> subprocess.CompletedProcess[str]:
    command = [pypandoc.get_pandoc_path(), "-f", "markdown", "-t", to, "--wrap=none", "--lua-filter", str(FILTER)]
    env = {**os.environ, "QUARTO_PROJECT_DIR": str(root), "QUARTO_DOCUMENT_FILE": "chapters/01-memory.qmd"}
    return subprocess.run(command, input=text, capture_output=True, text=True, env=env, check=False)


def plain(text: str, root: Path) -> str:
    done = pandoc(text, root, "plain")
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def html(text: str, root: Path) -> str:
    done = pandoc(text, root)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("span", "printed"),
    [
        ("[memory.reduction]{.value}", "2.50×"),
        ('[memory.reduction]{.value fmt=".1f"}', "2.5×"),
        ('[memory.reduction]{.value fmt=".0%"}', "250%"),
        ('[memory.reduction]{.value unit="-"}', "2.50"),
        ("[memory.peak]{.value}", "1,310,720\u00a0B"),
        ('[memory.peak]{.value fmt="d"}', "1310720\u00a0B"),
        ('[memory.peak]{.value unit="KiB"}', "1,280\u00a0KiB"),
        ('[memory.peak]{.value unit="MiB" fmt=".2f"}', "1.25\u00a0MiB"),
        ('[memory.peak]{.value unit="kB" fmt=",.1f"}', "1,310.7\u00a0kB"),
        ('[memory.share]{.value fmt=".1%"}', "25.0%"),
        ('[memory.share]{.value unit="percent"}', "25%"),
        ('[memory.share]{.value unit="percent" fmt=".1%"}', "25.0%"),
        ("[memory.share]{.value}", "0.250"),
        ('[memory.error]{.value fmt=".2e"}', "−3.86\u00a0×\u00a010⁻³"),
        ('[memory.reduction]{.value fmt=".1e"}', "2.5×"),
        ('[memory.none]{.value fmt=".0e" unit="-"}', "0"),
        ('[memory.error]{.value fmt=".2f"}', "0.00"),
        ('[memory.error]{.value fmt=".3g"}', "−0.00386"),
        ("[memory.count]{.value}", "9,344"),
        ("[memory.one]{.value}", "1\u00a0token"),
        ("[memory.time]{.value}", "0.0123\u00a0s"),
        ('[memory.time]{.value unit="ms"}', "12.3\u00a0ms"),
        ("[memory.fp8]{.value}", "not run here: needs <b>compute capability</b> 9.0"),
        ("[14 GB]{.given}", "14 GB"),
    ],
)
def test_a_value_is_printed_as_asked(root: Path, span: str, printed: str) -> None:
    assert plain(span, root) == printed


@pytest.mark.parametrize(
    ("span", "complaint"),
    [
        ("[memory.nothing]{.value}", "no record called memory.nothing"),
        ("[memory.holds]{.value}", "no record called memory.holds in the executed notebooks, it is a claim"),
        ("[text]{.claim name=memory.nothing}", "no claim called memory.nothing"),
        ("[text]{.claim}", "no claim called"),
        ('[memory.peak]{.value fmt="x"}', "bad fmt x"),
        ('[memory.peak]{.value fmt=",.2g"}', "bad fmt ,.2g"),
        ('[memory.reduction]{.value fmt="d"}', "fmt d needs a whole number, the value is 2.5"),
        ('[memory.peak]{.value fmt=".1%"}', "needs a fraction or a ratio"),
        ('[memory.peak]{.value unit="XiB"}', "unknown unit XiB"),
        ('[memory.peak]{.value unit="ms"}', "cannot show B (bytes) as ms (time)"),
    ],
)
def test_a_wrong_binding_fails_the_render_of_the_reference(root: Path, span: str, complaint: str) -> None:
    done = pandoc(f"Text {span}.", root)
    assert done.returncode != 0
    assert "chapters/01-memory.qmd: " in done.stderr
    assert complaint in done.stderr


def test_a_wrong_binding_is_marked_in_the_page_of_another_edition(root: Path) -> None:
    (root / "edition.json").write_text('{"edition": "lab-gpu"}')
    done = pandoc("Text [memory.nothing]{.value}.", root)
    assert done.returncode == 0
    assert '<span class="binding-error"><strong>[no record called memory.nothing' in done.stdout
    assert "no record called memory.nothing" in done.stderr


def test_a_name_in_two_notebooks_is_refused(root: Path) -> None:
    write_notebook(root / "notebooks" / "02-other.ipynb", [code("x", [shown(RECORDS[0])])])
    done = pandoc("[memory.reduction]{.value}", root)
    assert done.returncode != 0
    assert "two notebooks have a figure called memory.reduction" in done.stderr


def test_a_value_tells_where_it_is_from(root: Path) -> None:
    page = html('[memory.peak]{.value unit="MiB"}', root)
    for part in (
        'class="bound-value"',
        'tabindex="0"',
        'data-notebook="01-memory"',
        "memory.peak: 1,310,720\u00a0B (measured)",
        "batch size 128, dtype float32",
        "Xeon, 2 cores; Linux 6.1",
        "python 3.11.9, torch 2.13.0",
        "2026-11-29, commit abcdef1, notebook 01-memory, tier cpu",
    ):
        assert part in page


def test_a_notebook_without_provenance_says_so(root: Path) -> None:
    write_notebook(root / "notebooks" / "01-memory.ipynb", [code("x", [shown(RECORDS[0])])], provenance=None)
    assert "run by hand: no machine on record" in html("[memory.reduction]{.value}", root)


@pytest.mark.parametrize(
    ("name", "text", "classes", "mark"),
    [
        ("memory.holds", "T (held)", "bound-claim held", "✓ held"),
        ("memory.fails", "T (not held here: memory.peak = 1,310,720 B)", "bound-claim not-held", "✗ not held here"),
        ("memory.unknown", "T (not run here: needs fp8)", "bound-claim not-run", "– not run here"),
    ],
)
def test_a_claim_says_whether_it_held(root: Path, name: str, text: str, classes: str, mark: str) -> None:
    span = f"[T]{{.claim name={name}}}"
    assert plain(span, root) == text
    page = html(span, root)
    assert f'class="{classes}"' in page
    assert f'<span class="claim-mark">{mark}</span>' in page


def test_the_evidence_of_a_claim_that_did_not_hold_is_in_the_text(root: Path) -> None:
    page = html("[T]{.claim name=memory.fails}", root)
    assert '<span class="claim-detail">(memory.peak = 1,310,720 B)</span>' in page


@pytest.mark.parametrize(
    "text",
    [
        "## Heading {}",
        "| a | b |\n|---|---|\n| {} | x |\n",
        "| a | b |\n|---|---|\n| y | x |\n\n: Caption {}",
        '::: {{.callout-note title="t"}}\n{}\n:::',
        "Foot[^1]\n\n[^1]: note {}",
        "- item {}",
        "![Caption {}](x.png)",
        "> quoted {}",
        "[text {}]{{.claim name=memory.holds}}",
    ],
)
def test_values_work_everywhere(root: Path, text: str) -> None:
    assert "2.50×" in html(text.format("[memory.reduction]{.value}"), root)


@pytest.mark.parametrize("to", ["latex", "typst", "plain", "docx"])
def test_other_outputs_get_plain_text(root: Path, to: str) -> None:
    command = [pypandoc.get_pandoc_path(), "-f", "markdown", "-t", to, "--lua-filter", str(FILTER), "-o"]
    target = root / f"out.{to}"
    env = {**os.environ, "QUARTO_PROJECT_DIR": str(root)}
    text = "[memory.reduction]{.value} [T]{.claim name=memory.holds}"
    subprocess.run([*command, str(target)], input=text, text=True, env=env, check=True)
    assert target.stat().st_size > 0
    if to != "docx":
        assert "2.50" in target.read_text()
        assert "(held)" in target.read_text()


def test_nothing_from_a_notebook_becomes_html(root: Path) -> None:
    done = pandoc("[memory.tricky]{.value} [memory.fp8]{.value}", root, "json")
    assert "RawInline" not in done.stdout
    page = html("[memory.tricky]{.value} [memory.fp8]{.value}", root)
    assert "<script>" not in page
    assert "<b>" not in page


def test_filtering_twice_changes_nothing(root: Path) -> None:
    once = pandoc("[memory.reduction]{.value} [T]{.claim name=memory.fails}", root, "json").stdout
    command = [pypandoc.get_pandoc_path(), "-f", "json", "-t", "json", "--lua-filter", str(FILTER)]
    twice = subprocess.run(command, input=once, capture_output=True, text=True, cwd=root, check=True).stdout
    assert json.loads(twice) == json.loads(once)


def edition(root: Path, cells: list[dict[str, Any]], **info: Any) -> None:
    """Turn the project into one assembled for the edition lab-gpu, with the reference's notebook aside."""
    (root / "reference").mkdir()
    (root / "notebooks" / "01-memory.ipynb").rename(root / "reference" / "01-memory.ipynb")
    write_notebook(root / "notebooks" / "01-memory.ipynb", cells, GPU)
    (root / "edition.json").write_text(json.dumps({"edition": "lab-gpu", **info}))


def test_an_edition_shows_its_own_values_and_borrows_the_rest(root: Path) -> None:
    edition(root, [code("x", [shown(Record("memory.reduction", 3.0, "ratio", "measured"))])])
    page = html("[memory.reduction]{.value} and [memory.count]{.value}", root)
    assert "3.00×" in page
    assert "2 × H100" in page
    assert 'class="bound-value borrowed"' in page
    assert "borrowed from the reference edition: edition lab-gpu lacks it" in page
    assert page.count("borrowed-mark") == 1
    assert "Partly borrowed." in page
    assert plain("[memory.count]{.value}", root).endswith("9,344\u00a0(reference)")


def test_a_borrowed_notebook_is_marked_even_where_it_stands_in_the_edition(root: Path) -> None:
    edition(root, [code("x", [shown(RECORDS[0])])], borrowed=["01-memory"])
    assert 'class="bound-value borrowed"' in html("[memory.reduction]{.value}", root)


def test_a_page_that_binds_to_a_stale_notebook_says_so_after_its_title(root: Path) -> None:
    edition(root, [code("x", [shown(RECORDS[0])])], stale=["01-memory"])
    page = html("# Title\n\n[memory.reduction]{.value}", root)
    assert page.index("</h1>") < page.index("Made by an older version.") < page.index("2.50×")
    assert "Edition lab-gpu ran 01-memory" in page
    assert "older version" not in html("# Title\n\nNo value.", root)


def test_a_page_without_bindings_reads_no_notebook(root: Path) -> None:
    (root / "notebooks" / "01-memory.ipynb").write_text("{broken")
    assert html("[14 GB]{.given}", root) == '<p><span class="given">14 GB</span></p>'


def test_a_broken_notebook_is_named(root: Path) -> None:
    (root / "notebooks" / "01-memory.ipynb").write_text("{broken")
    done = pandoc("[memory.peak]{.value}", root)
    assert done.returncode != 0
    assert "01-memory.ipynb: not valid JSON" in done.stderr


QUARTO = """
quarto = {
  project = { directory = "%s" },
  doc = {
    input_file = "%s/chapters/01-memory.qmd",
    is_format = function(name) return name == "html" end,
    add_html_dependency = function(dep) io.stderr:write("dependency " .. dep.stylesheets[1] .. "\\n") end,
  },
  utils = { resolve_path = function(name) return "%s/" .. name end },
  log = { warning = function(text) io.stderr:write("(W) " .. text .. "\\n") end },
}
return dofile("%s")
"""


def test_with_the_names_that_quarto_documents(root: Path) -> None:
    (root / "quarto.lua").write_text(QUARTO % (root, root, FILTER.parent, FILTER))
    command = [pypandoc.get_pandoc_path(), "-f", "markdown", "-t", "html", "--lua-filter", str(root / "quarto.lua")]
    good = subprocess.run(command, input="[memory.count]{.value}", capture_output=True, text=True, check=True)
    assert "9,344" in good.stdout
    assert "dependency efficient-training.css" in good.stderr
    bad = subprocess.run(command, input="[memory.nothing]{.value}", capture_output=True, text=True, check=False)
    assert bad.returncode != 0
    assert f"{root}/chapters/01-memory.qmd: no record called memory.nothing" in bad.stderr
