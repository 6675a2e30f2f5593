"""The plugin, run by a real pytest over real notebooks executed by a real kernel."""

import json
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from efficient_training.nbval_records import differences

SETUP = """from efficient_training.claims import claim
from efficient_training.records import ANY, Tolerance, record"""


def executed(path: Path, source: str) -> Path:
    """A notebook with one import cell and one cell of `source`, executed."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(SETUP), nbformat.v4.new_code_cell(source)])
    NotebookClient(notebook, kernel_name="python3").execute()
    nbformat.write(notebook, path)
    return path


def edit(path: Path, before: str, after: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert before in text
    path.write_text(text.replace(before, after), encoding="utf-8")


def nbval(path: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "--nbval", "--nbval-current-env", "-p", "no:cacheprovider", str(path)]
    return subprocess.run(command, capture_output=True, text=True, cwd=path.parent, check=False)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = """a = record("demo.exact", 12, "B")
b = record("demo.near", 1.0, "ratio", tolerance=Tolerance(relative=0.1))
t = record("demo.time", 3.5, "s", tolerance=ANY)
claim("demo.order", "a is more than b", lambda x, y: x > y, [a, b])
claim("demo.fast", "it is quick", lambda x: x < 1, [t], scope="hardware")"""
    return executed(tmp_path_factory.mktemp("good") / "demo.ipynb", source)


def copy(good: Path, tmp_path: Path) -> Path:
    target = tmp_path / "demo.ipynb"
    target.write_text(good.read_text(encoding="utf-8"), encoding="utf-8")
    return target


def test_an_equal_run_passes_though_a_hardware_claim_does_not_hold(good: Path, tmp_path: Path) -> None:
    result = nbval(copy(good, tmp_path))
    assert result.returncode == 0, result.stdout
    assert '"held": false' in good.read_text(encoding="utf-8")


def test_a_record_outside_its_tolerance_fails_and_names_both_values(good: Path, tmp_path: Path) -> None:
    path = copy(good, tmp_path)
    edit(path, '"value": 1.0', '"value": 1.2')
    result = nbval(path)
    assert result.returncode == 1
    assert "record demo.near is now 1.0, was 1.2" in result.stdout


def outputs(path: Path) -> list[dict[str, object]]:
    """The outputs of the demo's second cell."""
    return json.loads(path.read_text(encoding="utf-8"))["cells"][1]["outputs"]  # type: ignore[no-any-return]


def test_a_claim_for_everywhere_that_does_not_hold_fails_even_where_it_was_committed_so(tmp_path: Path) -> None:
    source = 'claim("demo.false", "two is one", lambda x: x == 1, [record("demo.two", 2, "count")])'
    made = outputs(executed(tmp_path / "demo.ipynb", source))
    assert differences(made, made, "demo") == ["claim demo.false must hold everywhere and does not: demo.two = 2"]


@pytest.mark.parametrize(("before", "after"), [('"value": 1.0', '"value": 1.05'), ('"value": 3.5', '"value": 900.5')])
def test_a_record_within_its_tolerance_and_a_time_of_any_value_pass(good: Path, before: str, after: str) -> None:
    made = outputs(good)
    assert differences(made, changed(made, before, after), "demo") == []


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ('"value": 12', '"value": 13', "record demo.exact is now 12, was 13"),
        ('"demo.exact"', '"demo.gone"', "record demo.gone was committed, but this run did not make it"),
        ('"unit": "s"', '"unit": "ms"', "record demo.time is now measured in s, was measured in ms"),
        ('"relative": 0.1', '"relative": 0.2', "record demo.near has another tolerance"),
        ("it is quick", "it is slow", "claim demo.fast says something else"),
        ('"value": 12', '"value": null', "was None (gone)"),
    ],
)
def test_what_was_committed_and_what_is_made_must_agree(good: Path, before: str, after: str, message: str) -> None:
    made = outputs(good)
    committed = changed(made, before, after)
    if "null" in after:
        committed = changed(committed, '"reason": null', '"reason": "gone"')
    assert any(message in line for line in differences(made, committed, "demo"))


def changed(made: list[dict[str, object]], before: str, after: str) -> list[dict[str, object]]:
    text = json.dumps(made)
    assert before in text
    return json.loads(text.replace(before, after))  # type: ignore[no-any-return]
