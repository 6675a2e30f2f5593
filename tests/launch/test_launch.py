"""Real launches of small scripts, and the ways in which they end."""

from pathlib import Path

import pytest

from efficient_training.launch import LaunchError, launch

SUM = Path(__file__).parent / "scripts" / "sum_ranks.py"


def test_each_rank_reports_in_order_and_has_a_log() -> None:
    result = launch(SUM, ranks=2, backend="gloo", timeout_s=100, progress=False)
    first = {"step": "sum", "total": 3.0, "ranks": 2, "device": "cpu", "attempt": 0}
    assert result.reports == {rank: [first, {"step": "end", "threads": 1}] for rank in (0, 1)}
    assert result.log(1) == "rank 1 summed\n"
    with pytest.raises(LookupError, match="2 reports, not one"):
        _ = result.report
    assert result.folder.exists()


def test_the_failing_ranks_own_traceback_is_shown_not_its_peers(tmp_path: Path) -> None:
    with pytest.raises(LaunchError) as failed:
        launch(SUM, "raise", ranks=2, backend="gloo", timeout_s=100, folder=tmp_path, progress=False)
    lines = str(failed.value).splitlines()
    assert lines[0] == f"{SUM}: rank 1 of 2 failed: ValueError: a bad batch"
    assert lines[1] == "Traceback (most recent call last):"
    assert 'sum_ranks.py", line' in lines[2]
    assert 'raise ValueError("a bad batch")' in failed.value.traceback
    assert failed.value.rank == 1
    assert "rank.py" not in failed.value.traceback
    assert (tmp_path / "rank-0.log").read_text().startswith("rank 0 summed\n")
