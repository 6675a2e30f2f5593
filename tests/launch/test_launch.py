"""Real launches of small scripts, and the ways in which they end."""

import concurrent.futures
import socket
from pathlib import Path
from typing import Any

import psutil
import pytest

from efficient_training.errors import UserError
from efficient_training.launch import Launched, LaunchError, launch
from efficient_training.launch.folder import MARKER

SCRIPTS = Path(__file__).parent / "scripts"
SUM, PLAIN = SCRIPTS / "sum_ranks.py", SCRIPTS / "plain.py"
LIMIT_S = 100


def run(script: Path, *arguments: str, **options: Any) -> Launched:
    options = {"ranks": 2, "backend": "gloo", "timeout_s": LIMIT_S, "progress": False, **options}
    return launch(script, *arguments, **options)


def fail(script: Path, *arguments: str, **options: Any) -> LaunchError:
    with pytest.raises(LaunchError) as failed:
        run(script, *arguments, **options)
    return failed.value


def hang(script: Path, *arguments: str, until: str, **options: Any) -> LaunchError:
    """The failure of a launch that hangs, at a timeout late enough for `until` to be in a stack."""
    for limit in (10, 40, 160):  # how long ranks take to start depends on the machine
        error = fail(script, *arguments, timeout_s=limit, **options)
        assert str(error).startswith(f"{script}: not at its end after {limit} s; where each rank was:\nrank 0:\n")
        if any(until in stack for stack in error.stacks.values()):
            break
    return error


def test_each_rank_reports_in_order_and_has_a_log() -> None:
    result = run(SUM)
    first = {"step": "sum", "total": 3.0, "ranks": 2, "device": "cpu", "attempt": 0}
    assert result.reports == {rank: [first, {"step": "end", "threads": 1}] for rank in (0, 1)}
    assert result.log(1) == "rank 1 summed\n"
    with pytest.raises(LookupError, match="2 reports, not one"):
        _ = result.report
    folder = result.folder
    assert folder.exists()
    del result
    assert not folder.exists()


def test_any_script_can_be_launched_and_its_folder_kept(tmp_path: Path) -> None:
    (tmp_path / MARKER).touch()
    (tmp_path / "rank-5.report-0000-000000.json").write_text('{"of": "an earlier launch"}')
    result = run(PLAIN, "nothing", "--more", folder=tmp_path, environment={"OMP_NUM_THREADS": "3"})
    assert result.log(0) == "rank 0 of 2, __main__, ['nothing', '--more'], threads 3\n"
    assert result.reports == {}
    assert not list(tmp_path.glob("rank-5*"))
    with pytest.raises(LookupError, match="no log of rank 2"):
        result.log(2)
    del result
    assert (tmp_path / "rank-1.log").exists()


def test_the_failing_ranks_own_traceback_is_shown_not_its_peers(tmp_path: Path) -> None:
    error = fail(SUM, "raise", folder=tmp_path)
    lines = str(error).splitlines()
    assert lines[:2] == [f"{SUM}: rank 1 of 2 failed: ValueError: a bad batch", "Traceback (most recent call last):"]
    assert 'sum_ranks.py", line' in lines[2]
    assert 'raise ValueError("a bad batch")' in error.traceback
    assert error.rank == 1
    assert "Connection closed by peer" in (tmp_path / "rank-0.log").read_text()  # rank 0 failed too, for want of it


@pytest.mark.parametrize(
    ("script", "how", "message"),
    [
        (PLAIN, "raise", "rank 1 of 2 failed: ValueError: a bad batch\nTraceback (most recent call last):\n  File "),
        (PLAIN, "exit", "rank 1 of 2 failed: exit code 7\nrank 1 of 2, __main__, ['exit'], threads 1\nno data"),
        (SUM, "kill", "rank 1 of 2 was killed by SIGKILL (out of memory is the usual cause)\nrank 1 summed"),
    ],
)
def test_an_end_without_a_peers_help_is_named(script: Path, how: str, message: str) -> None:
    error = fail(script, how)
    assert str(error).startswith(f"{script}: {message}")
    assert error.rank == 1


def test_a_hang_ends_by_timeout_with_every_ranks_stack(tmp_path: Path) -> None:
    error = hang(SUM, "hang", until="in misbehave", folder=tmp_path)
    assert "in all_reduce" in error.stacks[0]
    assert error.stacks[1].splitlines()[1].endswith("in misbehave")
    assert "runpy" not in str(error)


def test_a_rank_that_cannot_answer_is_said_to_be_silent(tmp_path: Path) -> None:
    script = tmp_path / "stopped.py"
    script.write_text("import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)\n")
    error = hang(script, until="gave no stack", ranks=1)
    assert str(error).endswith("rank 0:\n  gave no stack: stopped, or held by the system")


def test_after_a_killed_rank_all_start_again() -> None:
    result = run(SUM, "kill", restarts=1)
    assert [made["attempt"] for made in result.reports[1] if made["step"] == "sum"] == [0, 1]
    assert result.reports[1][-1]["step"] == "end"
    assert result.log(1) == "rank 1 summed\n" * 2


def test_what_a_rank_leaves_behind_is_ended() -> None:
    assert not psutil.pid_exists(int(run(PLAIN, "daemon").log(1).splitlines()[-1]))


def test_the_launcher_of_deepspeed_runs_the_same_script() -> None:
    pytest.importorskip("deepspeed")
    assert [made["total"] for made in run(SUM, launcher="deepspeed").reports[1] if made["step"] == "sum"] == [3.0]
    assert str(fail(PLAIN, "kill", launcher="deepspeed")).startswith(f"{PLAIN}: rank 1 of 2 was killed by SIGKILL")


def test_accelerate_takes_a_config_and_is_not_let_run_fewer_ranks_without_one(tmp_path: Path) -> None:
    config = tmp_path / "accelerate.yaml"
    config.write_text("distributed_type: MULTI_GPU\nuse_cpu: true\nnum_machines: 1\nmixed_precision: 'no'\n")
    assert run(SUM, launcher="accelerate", config=config).reports[0][0]["total"] == 3.0
    assert "accelerate ran 1 of 2 ranks; look at its configuration" in str(fail(SUM, launcher="accelerate"))


def test_torchrun_on_several_machines_meets_at_an_endpoint() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{probe.getsockname()[1]}"
    with concurrent.futures.ThreadPoolExecutor() as machines:
        started = [machines.submit(run, SUM, nodes=2, endpoint=endpoint) for _ in range(2)]
        results = [one.result() for one in started]
    assert sorted(rank for result in results for rank in result.reports) == [0, 1]
    assert all(made[0]["total"] == 3.0 for result in results for made in result.reports.values())


def test_more_ranks_than_cores_are_warned_of_in_one_line(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0})
    from efficient_training.machine import detect

    detect.cache_clear()
    run(PLAIN, "nothing", progress=True)
    detect.cache_clear()
    assert "plain.py on 2 ranks by torchrun: 2 ranks share 1 core:" in capfd.readouterr().err.splitlines()[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"script": SCRIPTS / "none.py"}, "none.py: no such script in "),
        ({"launcher": "mpirun"}, "no launcher 'mpirun'; known: torchrun, slurm, deepspeed, accelerate"),
        ({"backend": "tcp"}, "no backend 'tcp'; known: gloo, nccl"),
        ({"ranks": 99, "backend": "nccl"}, "nccl needs a GPU for each rank: needs 99, found "),
        ({"ranks": 3, "nodes": 2}, "3 ranks on 2 nodes; take a number of ranks that is a multiple of the nodes'"),
        ({"ranks": 0}, "0 ranks on 1 nodes"),
        ({"nodes": 2}, "on 2 nodes torchrun needs an endpoint, HOST:PORT"),
        ({"timeout_s": 0}, "restarts must be 0 or more, and the timeout above zero"),
        ({"timeout_s": float("inf"), "launcher": "slurm"}, "the timeout above zero and finite"),
        ({"timeout_s": float("nan")}, "the timeout above zero and finite"),
        ({"config": SUM}, "only the launcher accelerate takes a config file"),
        ({"launcher": "accelerate", "config": "none.yaml"}, "no such config file: none.yaml"),
        ({"launcher": "deepspeed", "restarts": 1}, "the launcher deepspeed is used on one node and without restarts"),
        ({"partition": "gpu", "requeue": True}, "partition, requeue is of the launcher slurm; leave it out"),
        ({"port": 70000}, "port 70000: must be from 1 to 65535"),
        ({"port": 29500, "launcher": "slurm"}, "slurm takes no port: its job finds a free one; leave it out"),
        ({"port": 29500, "endpoint": "here:29501"}, "the endpoint here:29501 names a port; leave out the other, 29500"),
        ({"gpus_per_node": 1, "cpus_per_rank": 2}, "gpus_per_node, cpus_per_rank is of the launcher slurm"),
        ({"endpoint": "here:29500", "launcher": "slurm"}, "endpoint is of the launcher torchrun; leave it out"),
        ({"launcher": "slurm", "cpus_per_rank": 0}, "cpus_per_rank must be 1 or more, and gpus_per_node 0 or more"),
        ({"launcher": "slurm", "gpus_per_node": -1}, "cpus_per_rank must be 1 or more, and gpus_per_node 0 or more"),
        ({"endpoint": "here:there"}, "endpoint must be HOST:PORT, as node1:29500, got 'here:there'"),
        ({"endpoint": "here"}, "endpoint must be HOST:PORT, as node1:29500, got 'here'"),
        ({"endpoint": "here:0"}, "endpoint must be HOST:PORT, as node1:29500, got 'here:0'"),
        ({"launcher": "slurm", "partition": "a\n#SBATCH --x"}, "partition 'a\\n#SBATCH --x' holds a control character"),
        ({"launcher": "slurm", "account": "a\r"}, "account 'a\\r' holds a control character"),
        ({"launcher": "slurm", "folder": "a\\b"}, "a backslash, which SLURM cannot take; name another"),
        ({"script": 3}, "script must be a path, got 3"),
        ({"ranks": "2"}, "ranks must be a whole number, got '2'"),
        ({"ranks": True}, "ranks must be a whole number, got True"),
        ({"timeout_s": "3"}, "timeout_s must be a number of seconds, got '3'"),
        ({"port": "1"}, "port must be a whole number, got '1'"),
        ({"folder": 3}, "folder must be a path, got 3"),
        ({"folder": "a\0"}, "folder holds a NUL character"),
        ({"argument": ["--lr", "1"]}, "an argument of the script must be text, a number or a path, got ['--lr', '1']"),
        ({"argument": "a\0b"}, "an argument of the script holds a NUL character: 'a\\x00b'"),
        ({"environment": {"A": 1}}, "environment must be a mapping of names to text, got 'A': 1"),
        ({"environment": ["A"]}, "environment must be a mapping of names to text, got ['A']"),
        ({"environment": {"A=B": "1"}}, "environment: 'A=B' cannot name a variable; take letters, digits and _"),
        ({"environment": {"A": "\0"}}, "environment: A holds a NUL character"),
    ],
)
def test_what_cannot_run_is_refused_in_one_line(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as refused:
        run(options.pop("script", PLAIN), options.pop("argument", "nothing"), **options)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not isinstance(refused.value, LaunchError)


def test_a_script_that_cannot_run_is_refused_before_any_process_starts(tmp_path: Path) -> None:
    script = tmp_path / "syn.py"
    for source, what in {"x = 1\nf(:": r"SyntaxError: invalid syntax \(syn.py, line 2\)", "a\0": "null bytes"}.items():
        script.write_text(source)
        with pytest.raises(UserError, match=f"syn.py: not a Python script that can .*{what}"):
            run(script, folder=tmp_path / "logs")
    assert list(tmp_path.iterdir()) == [script]


def test_a_port_in_use_is_refused() -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=rf"port {port}: cannot be used \(address already in use\); choose another"):
            run(PLAIN, "nothing", port=port)


def test_without_sbatch_slurm_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="no sbatch on the PATH, which the launcher slurm needs; go to a login node"):
        run(PLAIN, "nothing", launcher="slurm", folder=tmp_path / "folder")
    assert list(tmp_path.iterdir()) == []
