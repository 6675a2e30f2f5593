"""Launches through a real SLURM of two virtual nodes; what goes wrong on one machine is tested in launch/."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from private_slurm import PrivateSlurm

from efficient_training.errors import UserError
from efficient_training.launch import Launched, LaunchError, launch

SUM = Path(__file__).parents[1] / "launch" / "scripts" / "sum_ranks.py"
WAIT_S = 120.0
LIMIT_S = 20
MAIN = ("-p", "main")


def wait_until(true: Callable[[], object]) -> None:
    end = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.1)


def on_slurm(*arguments: str, folder: Path | None = None, **options: Any) -> Launched:
    options = {"script": SUM, "ranks": 2, "backend": "gloo", "launcher": "slurm", "progress": False, **options}
    return launch(options.pop("script"), *arguments, folder=folder, **options)


class InBackground(threading.Thread):
    """A launch that goes on while other things happen; `result` is what came of it."""

    def __init__(self, *arguments: str, **options: Any) -> None:
        super().__init__(daemon=True)
        self.arguments, self.options = arguments, options
        self.result: Launched | LaunchError | None = None
        self.start()

    def run(self) -> None:
        try:
            self.result = on_slurm(*self.arguments, **self.options)
        except LaunchError as error:
            self.result = error


@pytest.fixture(scope="module")
def too_long(_cluster: PrivateSlurm, tmp_path_factory: pytest.TempPathFactory) -> InBackground:
    """SLURM enforces limits in whole minutes, and so this job runs beside the other tests."""
    folder = tmp_path_factory.mktemp("too_long")
    script = folder / "sleep.py"
    script.write_text("import time\ntime.sleep(600)\n", encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in _cluster.environment.items():
            patch.setenv(name, value)
        launched = InBackground(script=script, ranks=1, partition="short", folder=folder / "logs")
        wait_until((folder / "logs" / "rank-0.start.json").exists)
    return launched


def test_two_ranks_on_two_nodes_reduce_and_report(
    slurm: PrivateSlurm, too_long: InBackground, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    # Of a job in which this may run: its sizes are not to become the new job's.
    monkeypatch.setenv("SLURM_NNODES", "1")
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "1")
    result = on_slurm(nodes=2, timeout_s=100)
    assert {rank: made[0]["total"] for rank, made in result.reports.items()} == {0: 3.0, 1: 3.0}
    assert result.log(0) == "rank 0 summed\n"
    assert result.folder.parent == tmp_path  # which the nodes share, unlike a temporary folder
    del result
    assert list(tmp_path.iterdir()) == []


def test_a_killed_rank_is_named(slurm: PrivateSlurm, tmp_path: Path) -> None:
    with pytest.raises(LaunchError) as failed:
        on_slurm("kill", nodes=2, folder=tmp_path)
    first = str(failed.value).splitlines()[0]
    assert first == f"{SUM}: rank 1 of 2 was killed by SIGKILL (out of memory is the usual cause)"


def test_a_hang_ends_with_every_ranks_stack(slurm: PrivateSlurm, tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=f"not at its end after {LIMIT_S} s") as failed:
        on_slurm("hang", nodes=2, folder=tmp_path, timeout_s=LIMIT_S)
    assert "in all_reduce" in failed.value.stacks[0]
    assert "in misbehave" in failed.value.stacks[1]
    assert slurm.jobs(*MAIN) == []


def test_a_requeued_job_starts_again_and_its_attempts_are_told_apart(slurm: PrivateSlurm, tmp_path: Path) -> None:
    launched = InBackground("hang", folder=tmp_path, requeue=True)
    wait_until((tmp_path / "rank-1.report-0000-000000.json").exists)
    slurm.output("scontrol", "requeue", *slurm.jobs(*MAIN))
    launched.join(WAIT_S)
    assert isinstance(launched.result, Launched)
    assert [report["attempt"] for report in launched.result.reports[1] if report["step"] == "sum"] == [0, 1]


def test_the_job_is_cancelled_with_whoever_waits_for_it(slurm: PrivateSlurm, tmp_path: Path) -> None:
    code = "import sys; from efficient_training.launch import launch\n"
    code += f"launch({str(SUM)!r}, 'hang', ranks=2, launcher='slurm', backend='gloo', folder=sys.argv[1])"
    for number, end in enumerate((signal.SIGINT, signal.SIGKILL)):
        folder = tmp_path / str(number)
        caller = subprocess.Popen(
            [sys.executable, "-c", code, str(folder)], stderr=subprocess.PIPE, text=True, env=dict(os.environ)
        )
        wait_until((folder / "rank-1.start.json").exists)
        caller.send_signal(end)
        _, errors = caller.communicate(timeout=WAIT_S)
        wait_until(lambda: slurm.jobs(*MAIN) == [])
        assert "running" in errors
        assert ("KeyboardInterrupt" in errors) == (end == signal.SIGINT)


def test_what_slurm_refuses_is_said_in_one_line(slurm: PrivateSlurm, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"refuses the job: .*[Ii]nvalid partition.*; see `sinfo`$") as refused:
        on_slurm(partition="nope", folder=tmp_path)
    assert "\n" not in str(refused.value)
    with pytest.raises(UserError, match=r"never start it \(PartitionNodeLimit\); see `scontrol"):
        on_slurm(ranks=5, nodes=5, folder=tmp_path)
    with pytest.raises(UserError, match=r"refuses the job: .*gres"):
        on_slurm(backend="nccl", folder=tmp_path)


def test_a_job_at_its_time_limit_says_so(too_long: InBackground, slurm: PrivateSlurm) -> None:
    too_long.join(WAIT_S)
    assert isinstance(too_long.result, LaunchError)
    assert re.search(r"job \d+ ran into its time limit of 00:01:00; give it more", str(too_long.result))
