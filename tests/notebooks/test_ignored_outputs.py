"""Cells whose text nbval does not compare: few, without exact records, and never more than before."""

import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
KEPT = Path(__file__).with_name("ignored_outputs.json")
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def ignored(path: Path) -> list[dict[str, Any]]:
    """The notebook's cells that nbval is told not to compare, by tag or by comment."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [
        cell
        for cell in cells
        if "nbval-ignore-output" in cell["metadata"].get("tags", ()) or "NBVAL_" in "".join(cell["source"]).upper()
    ]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_number_of_ignored_outputs_is_the_kept_one_and_may_only_shrink(path: Path) -> None:
    kept = json.loads(KEPT.read_text(encoding="utf-8"))
    assert len(ignored(path)) == kept.get(path.stem, 0), f"write the number into {KEPT.name} if it became smaller"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_cell_with_an_exact_record_is_compared(path: Path) -> None:
    for cell in ignored(path):
        data = [output["metadata"].get("efficient_training", {}) for output in cell["outputs"] if "metadata" in output]
        exact = [item["name"] for item in data if item.get("tolerance") == {"absolute": 0.0, "relative": 0.0}]
        assert not exact, f"{path.stem}, cell {cell['id']}: {exact} would go unseen"
