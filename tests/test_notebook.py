import json
import resource
from typing import Any

import nbformat
import pytest
from nbformat import NotebookNode

from efficient_training import notebook as nb
from efficient_training.display import METADATA_KEY
from efficient_training.errors import UserError


def executed() -> NotebookNode:
    """A notebook as papermill leaves it."""
    made: NotebookNode = nbformat.v4.new_notebook(
        metadata={
            "kernelspec": {"name": "my-env", "display_name": "mine", "language": "python"},
            "language_info": {"name": "python", "version": "3.11.7", "pygments_lexer": "ipython3"},
            "papermill": {"input_path": "/home/someone/x.ipynb", "start_time": "2026-01-01"},
            "widgets": {"state": {}},
            METADATA_KEY: {"edition": "here"},
        }
    )
    cell = nbformat.v4.new_code_cell("1", id="a", execution_count=7)
    cell.metadata = NotebookNode(tags=["x"], papermill={"duration": 1.5}, execution={"iopub.status.busy": "now"})
    data = {"text/plain": "1", "text/html": "<b>1</b>", "application/vnd.jupyter.widget-view+json": {}}
    cell.outputs = [
        nbformat.v4.new_output("execute_result", data, execution_count=7, metadata={"needs_background": "light"}),
        nbformat.v4.new_output("display_data", {"text/plain": "r"}, metadata={METADATA_KEY: {"type": "record"}}),
        nbformat.v4.new_output("display_data", {"application/javascript": "alert(1)"}),
        nbformat.v4.new_output("stream", name="stdout", text="\x1b[31mred\x1b[0m\n"),
    ]
    made.cells = [nbformat.v4.new_markdown_cell("# T", id="t", metadata={"jp-MarkdownHeadingCollapsed": True}), cell]
    return made


def test_cleaning_keeps_what_a_page_shows_and_nothing_of_the_run() -> None:
    made = executed()
    nb.clean(made)
    assert made.metadata == {
        "kernelspec": nb.KERNELSPEC,
        "language_info": {"name": "python"},
        METADATA_KEY: {"edition": "here"},
    }
    title, cell = made.cells
    assert title.metadata == {}
    assert (cell.metadata, cell.execution_count) == ({"tags": ["x"]}, 1)
    result, shown, stream = cell.outputs
    assert (result.data, result.metadata, result.execution_count) == ({"text/plain": "1"}, {}, None)
    assert shown.metadata == {METADATA_KEY: {"type": "record"}}
    assert stream.text == "red\n"
    nbformat.validate(made)


def test_cleaning_and_writing_twice_is_writing_once(tmp_path: Any) -> None:
    made = executed()
    nb.clean(made)
    path = tmp_path / "01-x.ipynb"
    nb.write(made, path)
    text = path.read_text()
    again = nb.read(path)
    nb.clean(again)
    assert nb.dumps(again) == text
    assert text.endswith("}\n")
    assert json.dumps(json.loads(text), indent=1, sort_keys=True, ensure_ascii=False) + "\n" == text


def test_a_failed_write_leaves_the_old_file(tmp_path: Any) -> None:
    path = tmp_path / "01-x.ipynb"
    made = executed()
    nb.write(made, path)
    before = path.read_bytes()
    made.cells[0].source = "\ud800"
    with pytest.raises(UnicodeEncodeError):
        nb.write(made, path)
    assert path.read_bytes() == before
    assert [item.name for item in tmp_path.iterdir()] == ["01-x.ipynb"]


def test_a_write_for_which_there_is_no_room_names_the_file_and_leaves_the_old_one(tmp_path: Any) -> None:
    path = tmp_path / "01-x.ipynb"
    made = executed()
    nb.write(made, path)
    before = path.read_bytes()
    made.cells[0].source = "x" * 100_000
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
    try:
        with pytest.raises(OSError, match=r"01-x\.ipynb"):
            nb.write(made, path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == before
    assert [item.name for item in tmp_path.iterdir()] == ["01-x.ipynb"]


@pytest.mark.parametrize(
    ("text", "message"),
    [(None, "no such notebook"), ("{", "not a valid notebook"), ("[]", "not a valid"), ("{}", "not a valid")],
)
def test_what_is_no_notebook_is_refused(tmp_path: Any, text: str | None, message: str) -> None:
    path = tmp_path / "01-x.ipynb"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UserError, match=message):
        nb.read(path)


def test_parameters_are_the_names_that_the_tagged_cell_assigns() -> None:
    made = executed()
    made.cells[1].metadata.tags = ["parameters"]
    made.cells[1].source = "steps = 3  # count\nrate: float = 1e-3\na = b = -1\nshape = (1, 2)\nbig = 2**10\nx: int"
    expected = {"steps": 3, "rate": 0.001, "a": -1, "b": -1, "shape": (1, 2), "big": ...}
    assert nb.parameters(made) == expected
    made.cells[1].metadata.tags = []
    assert nb.parameters(made) == {}


def test_the_cleaner_cleans_in_place_and_says_so(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "01-x.ipynb"
    nb.write(executed(), path)
    assert nb.main([str(path)]) == 1
    assert capsys.readouterr().out == f"{path}: cleaned\n"
    assert "papermill" not in path.read_text()
    assert nb.main([str(path)]) == 0
    path.write_text("{")
    assert nb.main([str(path)]) == 2
    assert "not a valid notebook" in capsys.readouterr().err
