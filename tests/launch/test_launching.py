"""The command `launch`."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from efficient_training import cli

SCRIPTS = Path(__file__).parent / "scripts"
SUM, PLAIN = str(SCRIPTS / "sum_ranks.py"), str(SCRIPTS / "plain.py")
GLOO = ("--ranks", "2", "--backend", "gloo")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("signal.signal", lambda *_: None)  # the command's own, in this process
    return tmp_path


def test_rank_0_is_heard_and_reports_are_printed(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    assert cli.run(["launch", *GLOO, SUM, "nothing", "--ranks", "7"]) == 0
    heard, *reports, last = capsys.readouterr().out.splitlines()
    assert heard == "rank 0 summed"
    assert [json.loads(line)["rank"] for line in reports] == [0, 0, 1, 1]
    folder = last.rpartition("logs: ")[2]
    assert last.startswith(f"{SUM}: 2 ranks ended after ")
    assert folder.startswith("launches/sum_ranks-")
    assert (here / folder / "rank-1.log").read_text() == "rank 1 summed\n"


def test_a_failing_script_ends_with_1_and_its_traceback(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    assert cli.run(["launch", *GLOO, "--folder", "logs", PLAIN, "raise"]) == 1
    errors = capsys.readouterr().err
    assert errors.startswith(f"error: {PLAIN}: rank 1 of 2 failed: ValueError: a bad batch\nTraceback ")
    assert errors.endswith("ValueError: a bad batch\nlogs: logs\n")
    assert (here / "logs" / "rank-0.log").exists()


def test_a_dry_run_prints_commands_that_do_the_same(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    assert cli.run(["launch", *GLOO, "--dry-run", "--folder", "by hand", SUM, "a b"]) == 0
    commands = capsys.readouterr().out
    assert list(here.iterdir()) == []
    subprocess.run(["sh", "-e"], input=commands, text=True, check=True, capture_output=True)
    assert (here / "by hand" / "rank-1.log").read_text() == "rank 1 summed\n"


def test_a_dry_run_prints_the_job_script(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    options = ["--launcher", "slurm", "--ranks", "8", "--nodes", "2", "--partition", "gpu", "--account", "me"]
    assert cli.run(["launch", *options, "--timeout", "5400", "--requeue", "--dry-run", SUM, "a b"]) == 0
    text = capsys.readouterr().out
    lines = text.splitlines()
    assert lines[0] == "#!/bin/bash"
    for directive in ("nodes=2", "ntasks-per-node=1", "cpus-per-task=4", "gpus-per-node=4", "time=90", "requeue"):
        assert f"#SBATCH --{directive}" in lines
    assert {"#SBATCH --partition=gpu", "#SBATCH --account=me"} < set(lines)
    assert text.endswith(f"  -m efficient_training.launch.rank {SUM} 'a b'\n")
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)
    assert list(here.iterdir()) == []


def test_who_reads_no_more_does_not_make_a_launch_fail(here: Path) -> None:
    (here / "quiet.py").touch()
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as closed:
        command = [sys.executable, "-m", "efficient_training", "launch", "quiet.py"]
        ended = subprocess.run(command, cwd=here, stdout=closed, stderr=subprocess.PIPE, text=True)
    assert ended.returncode == 0, ended.stderr
    assert "rror" not in ended.stderr


def test_a_name_is_no_pattern_to_slurm_nor_a_directive(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    options = ["--launcher", "slurm", "--backend", "gloo", "--dry-run"]
    for name in ("100%j.py", "a\n#SBATCH --hold\n.py"):
        (here / name).touch()
    assert cli.run(["launch", *options, "--folder", "logs", "100%j.py"]) == 0
    assert cli.run(["launch", *options, "--folder", "%x", "100%j.py"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if "output" in line] == [
        f"#SBATCH --output={here}/logs/launcher.log",
        f"#SBATCH --output={here}/%%x/launcher.log",
    ]
    assert lines.count("#SBATCH --job-name=100%j") == 2
    assert cli.run(["launch", *options, "a\n#SBATCH --hold\n.py"]) == 2
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none.py"], "launch none.py: no such script in "),
        (["--backend", "tcp", SUM], "no backend 'tcp'; known: gloo, nccl"),
        (["--launcher", "ssh", SUM], "no launcher 'ssh'; known: torchrun, slurm, deepspeed, accelerate"),
        (["--ranks", "99", "--backend", "nccl", SUM], "nccl needs a GPU for each rank: needs 99, found "),
        (["--ranks", "two", SUM], "see `efficient-training launch --help`"),
        (["--no-wait", SUM], "--no-wait is of the launcher slurm; torchrun runs here"),
        ([], "see `efficient-training launch --help`"),
    ],
)
def test_what_the_user_can_mend_is_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], here: Path
) -> None:
    assert cli.run(["launch", *arguments]) == 2
    errors = capsys.readouterr().err
    assert errors.startswith("error: ")
    assert errors.count("\n") == 1
    assert message in errors
    assert list(here.iterdir()) == []


def test_ctrl_c_and_a_schedulers_end_leave_in_order(here: Path) -> None:
    command = [sys.executable, "-m", "efficient_training", "launch", *GLOO, "--folder", "logs", PLAIN, "hang"]
    for number, end in enumerate((signal.SIGINT, signal.SIGTERM)):
        command[-3] = f"logs{number}"
        caller = subprocess.Popen(command, cwd=here, stderr=subprocess.PIPE, text=True)
        try:
            limit = time.monotonic() + 60
            while not (here / f"logs{number}" / "rank-1.start.json").exists():
                assert time.monotonic() < limit
                time.sleep(0.05)
            caller.send_signal(end)
            assert f"interrupted; all ranks are ended; logs: logs{number}\n" in caller.communicate(timeout=60)[1]
            assert caller.returncode == 130
        finally:
            caller.kill()
            caller.wait()
