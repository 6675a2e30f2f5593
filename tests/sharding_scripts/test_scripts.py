"""The chapter's scripts where its notebook does not go: other ways to fail, and what they say."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from efficient_training.launch import launch

SCRIPTS = Path(__file__).parents[2] / "notebooks" / "06-sharding"
LIMIT_S = 150


def on_two_ranks(script: str, *arguments: str, **options: Any) -> list[dict[str, Any]]:
    """What rank 0 reports."""
    made = launch(SCRIPTS / script, *arguments, ranks=2, backend="gloo", timeout_s=LIMIT_S, progress=False, **options)
    return made.reports[0]


def by_hand(script: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """The script started as any other, alone."""
    return subprocess.run(
        [sys.executable, SCRIPTS / script, *arguments], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )


def message(ended: "subprocess.CompletedProcess[str]") -> str:
    """The one line with which a script that fails ends."""
    assert ended.returncode == 1
    return ended.stderr.strip().splitlines()[-1]


@pytest.fixture(scope="module")
def restarted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """Checkpoints and reports of a run in which a rank is killed within step 3, after the checkpoint of step 2."""
    folder = tmp_path_factory.mktemp("checkpoints")
    arguments = ("--folder", str(folder), "--steps", "4", "--save-every", "2", "--die-at", "3", "--while", "stepping")
    return folder, on_two_ranks("restart.py", *arguments, restarts=1)


def test_a_rank_killed_within_a_step_costs_the_steps_since_the_last_checkpoint(
    restarted: tuple[Path, list[dict[str, Any]]],
) -> None:
    folder, reports = restarted
    assert [report["resumed_at"] for report in reports if "resumed_at" in report] == [0, 2]
    assert [report["step"] for report in reports if "step" in report] == [1, 2, 3, 4]  # step 3 never ended, once
    assert [path.name for path in folder.iterdir()] == ["step-000002"]


def test_one_rank_resumes_what_two_have_saved(restarted: tuple[Path, list[dict[str, Any]]], tmp_path: Path) -> None:
    folder, reports = restarted
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    ended = by_hand("resume.py", "--folder", str(tmp_path), "--steps", "4")
    assert ended.returncode == 0, ended.stderr
    made = [json.loads(line) for line in ended.stdout.splitlines()]
    assert made[0]["resumed_at"] == 2
    losses = [report["loss"] for report in reports if report.get("step", 0) > 2]
    assert [report["loss"] for report in made[1:]] == pytest.approx(losses, rel=1e-5)


def test_a_damaged_checkpoint_is_refused(restarted: tuple[Path, list[dict[str, Any]]], tmp_path: Path) -> None:
    shutil.copytree(restarted[0], tmp_path, dirs_exist_ok=True)
    file = tmp_path / "step-000002" / "__1_0.distcp"
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    said = message(by_hand("resume.py", "--folder", str(tmp_path)))
    assert f"cannot resume from {tmp_path}/step-000002, which is damaged or of another model" in said
    assert said.endswith("remove it, and the one before is used")


def test_a_checkpoint_of_another_model_is_refused(restarted: tuple[Path, list[dict[str, Any]]]) -> None:
    said = message(by_hand("resume.py", "--folder", str(restarted[0]), "--width", "64"))
    assert "which is damaged or of another model (ValueError: Size mismatch between saved" in said


def test_a_rank_without_tokens_does_no_harm_and_no_token_at_all_is_refused() -> None:
    ways = {report["way"]: report for report in on_two_ranks("tokens.py", "--lengths", "1", "0")}
    assert ways["token_mean"]["error"] < 1e-5
    assert ways["token_mean"]["loss"] == pytest.approx(ways["one process"]["loss"], rel=1e-5)
    assert ways["mean_of_means"]["loss"] != ways["mean_of_means"]["loss"]  # nan
    said = message(by_hand("tokens.py", "--lengths", "0"))
    assert said.endswith("no rank has a token to learn from in this step: check the labels, or skip such batches")


def test_accelerate_launch_with_a_file_gives_what_the_file_says() -> None:
    (report,) = on_two_ranks("switch.py", "fsdp2", launcher="accelerate", config=SCRIPTS / "fsdp2.yaml")
    assert report["of"] == "fsdp2"
    assert report["whole"] / 2 <= report["weights"] < 1.001 * report["whole"] / 2


def test_another_strategy_than_expected_is_an_error() -> None:
    assert "asked for zero2 on 1 processes, got no strategy (Model) on 1; compare the YAML file" in message(
        by_hand("switch.py", "zero2")
    )
