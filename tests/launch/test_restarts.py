"""The chapter's restart and checkpoint experiments, again and again: three times here, fifty in `make soak`."""

import os
from pathlib import Path
from typing import Any

import psutil
import pytest

from efficient_training.launch import Launched, launch

SCRIPTS = Path(__file__).parents[2] / "notebooks" / "06-sharding"
RUNS = 50 if os.environ.get("SOAK") else 3
STEPS = ("--steps", "4")
LIMIT_S = 300


def run(script: str, folder: Path, *arguments: str, **options: Any) -> Launched:
    options = {"backend": "gloo", "timeout_s": LIMIT_S, "progress": False, **options}
    return launch(SCRIPTS / script, "--folder", str(folder), *STEPS, *arguments, **options)


def losses(reports: list[dict[str, Any]]) -> dict[int, float]:
    """The last loss that was reported of each step."""
    return {made["step"]: made["loss"] for made in reports if "step" in made}


def starts(reports: list[dict[str, Any]]) -> list[int]:
    return [made["resumed_at"] for made in reports if "resumed_at" in made]


@pytest.mark.parametrize("number", range(RUNS))
def test_what_four_ranks_save_two_resume_and_a_killed_rank_costs_no_checkpoint(number: int, tmp_path: Path) -> None:
    before = set(psutil.Process().children())  # of other tests: a browser, a cluster's daemons
    saved = tmp_path / "saved"
    whole = losses(run("resume.py", saved, "--save-every", "2", ranks=4).reports[0])
    assert list(whole) == [1, 2, 3, 4]

    resumed = run("resume.py", saved, ranks=2).reports[0]
    assert starts(resumed) == [2]
    assert losses(resumed) == pytest.approx({step: whole[step] for step in (3, 4)}, rel=1e-5)

    kept = tmp_path / "kept"
    how = ("saving", "2") if number % 2 else ("stepping", "3")
    again = run("restart.py", kept, "--save-every", "1", "--while", how[0], "--die-at", how[1], ranks=2, restarts=1)
    assert starts(again.reports[0]) == [0, int(how[1]) - 1]
    assert losses(again.reports[0]) == pytest.approx(whole, rel=1e-5)
    assert sorted(path.name for path in kept.iterdir()) == ["step-000001", "step-000002", "step-000003"]
    assert set(psutil.Process().children()) <= before
