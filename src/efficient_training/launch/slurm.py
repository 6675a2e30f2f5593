"""Submits a job to SLURM as a readable script that runs torchrun on each node, and waits for it."""

import contextlib
import re
import shlex
import shutil
import subprocess
import sys
import time
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import UserError
from . import exchange, guard, outcome
from .commands import RANK, TORCHRUN, torchrun_options
from .job import Job, environment, inherited
from .local import LAUNCHER_LOG, POLL_S

SCRIPT = "job.sh"
SLOWEST_POLL_S = 5.0
PATIENCE_S = 300.0
"""For a controller that does not answer, as while it is restarted."""
SETTLE_S = 15.0
"""For a job's last files to appear on a shared disk, and for a job that lost its node to be queued again."""

FREE_PORT = 'import socket; s = socket.socket(); s.bind(("", 0)); print(s.getsockname()[1])'

ENDED = {
    "COMPLETED": "ended",
    "FAILED": "failed",
    "CANCELLED": "was cancelled",
    "TIMEOUT": "ran into its time limit of {limit}; give it more, or less to do",
    "DEADLINE": "ran into its deadline",
    "OUT_OF_MEMORY": "was ended for using more memory than it had asked for",
    "NODE_FAIL": "lost a node",
    "BOOT_FAIL": "lost a node",
    "PREEMPTED": "was preempted by another job",
}
"""States from which a job does not go on, and what they mean."""
MAY_COME_BACK = {"NODE_FAIL", "BOOT_FAIL", "PREEMPTED"}
NEVER_STARTS = {"PartitionTimeLimit", "PartitionNodeLimit", "BadConstraints", "InvalidAccount", "InvalidQOS"}
"""Reasons for which a pending job would wait for ever."""

State = dict[str, str]


def script(job: Job, folder: Path | str) -> str:
    """The job script for `sbatch`: directives, environment, rendezvous, and torchrun on each node."""
    gpus = job.gpus_per_node
    if gpus is None:
        gpus = 0 if job.backend == "gloo" else job.ranks_per_node
    directives = {
        "job-name": job.script.stem,
        "nodes": job.nodes,
        "ntasks-per-node": 1,
        "cpus-per-task": job.ranks_per_node * job.cpus_per_rank,
        "gpus-per-node": gpus or None,
        "partition": job.partition or None,
        "account": job.account or None,
        "time": job.minutes,
        "output": _pattern(job, f"{folder}/{LAUNCHER_LOG}"),
        "open-mode": "append",
    }
    for name, value in directives.items():
        if any(unicodedata.category(character) in ("Cc", "Cs") for character in str(value)):
            raise UserError(
                f"launch {job.script}: {name} {str(value)!r} holds a control character, which SLURM cannot take"
            )
    lines = ["#!/bin/bash"]
    lines += [f"#SBATCH --{name}={shlex.quote(str(value))}" for name, value in directives.items() if value is not None]
    lines += [f"#SBATCH --{'requeue' if job.requeue else 'no-requeue'}", ""]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in environment(job, Path(folder)).items()]
    lines += [
        "",
        "# The ranks find each other through the first node, where this script runs, at a port that is free there.",
        'head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
        f"port=$({shlex.quote(sys.executable)} -c '{FREE_PORT}')",
        "",
    ]
    rendezvous = [
        f"--nnodes={job.nodes}",
        "--rdzv-backend=c10d",
        '--rdzv-endpoint="$head:$port"',
        '--rdzv-id="$SLURM_JOB_ID.${SLURM_RESTART_COUNT:-0}"',
        # The ranks answer SIGUSR1 with their stacks, which torchrun is to live through.
        "--signals-to-handle=SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1",
    ]
    start = f"srun --kill-on-bad-exit=1 --cpus-per-task={directives['cpus-per-task']}"
    options = [part if part in rendezvous else shlex.quote(part) for part in torchrun_options(job, folder, rendezvous)]
    what = shlex.join([*RANK, str(job.script), *job.arguments])
    return "\n".join([*lines, " \\\n  ".join([f"{start} {shlex.join(TORCHRUN)}", *options, what])]) + "\n"


def _pattern(job: Job, path: str) -> str:
    """A path as SLURM's pattern of a file name."""
    if "\\" in path:
        raise UserError(
            f"launch {job.script}: the folder of {path} has a backslash, which SLURM cannot take; name another"
        )
    return path.replace("%", "%%")


def run(job: Job, folder: Path, tick: Callable[[str], None]) -> None:
    """Submit `job` and wait until it ends; `tick` is called all the while with its state.

    Raises `UserError` where SLURM is not here or refuses the job, `LaunchError` where it fails or `job.timeout_s` are
    over since it started. The job is cancelled where this ends before it, by Ctrl-C or by kill -9 too.
    """
    with _submitted(job, folder) as number:
        state = _wait(job, folder, number, tick)
        started = time.monotonic()
        while state == "COMPLETED" and time.monotonic() - started < SETTLE_S:
            if len(exchange.read_starts(folder)) == job.ranks:
                break
            time.sleep(POLL_S)
    if state != "COMPLETED":
        raise _failure(job, folder, number, state)


def submit(job: Job, folder: Path) -> str:
    """Submit `job` and do not wait; returns its number. Raises `UserError` where SLURM is not here, or refuses it."""
    if shutil.which("sbatch") is None:
        raise UserError(
            f"launch {job.script}: no sbatch on the PATH, which the launcher slurm needs; "
            "go to a login node of the cluster, or take the launcher torchrun"
        )
    path = folder / SCRIPT
    path.write_text(script(job, folder), encoding="utf-8")
    # In a session of its own, so that Ctrl-C does not leave it open whether the job was submitted.
    process = subprocess.Popen(
        ["sbatch", "--parsable", str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=_outside_of_jobs(),
        start_new_session=True,
    )
    try:
        output, errors = process.communicate()
    except BaseException:
        output, errors = process.communicate()
        _cancel(output.strip().partition(";")[0])
        raise
    if process.returncode:
        lines = [line.removeprefix("sbatch: ").removeprefix("error: ").strip() for line in errors.splitlines()]
        text = "; ".join(dict.fromkeys(filter(None, lines))) or f"exit code {process.returncode}"
        raise UserError(f"launch {job.script}: SLURM refuses the job: {text}; see `sinfo`")
    return output.strip().partition(";")[0]


def _outside_of_jobs() -> dict[str, str]:
    """The environment without that of a job in which this may run, whose sizes sbatch would take over."""
    return {name: value for name, value in inherited().items() if name == "SLURM_CONF" or not name.startswith("SLURM_")}


@contextmanager
def _submitted(job: Job, folder: Path) -> Iterator[str]:
    """Submit a job that does not outlive this context, nor this process."""
    number = submit(job, folder)
    watcher = None
    try:
        watch = [sys.executable, guard.__file__, "--otherwise", "scancel", "--quiet", number]
        watcher = subprocess.Popen(watch, stdin=subprocess.PIPE, start_new_session=True)
        yield number
    finally:
        _cancel(number)
        if watcher is not None:
            watcher.communicate(b".")


def goes_on(number: str) -> bool:
    """Whether a job that was submitted here has not ended."""
    return shutil.which("scontrol") is not None and _state(number).get("JobState") not in {*ENDED, None}


def _cancel(number: str) -> None:
    """Cancel the job where it has not ended, and wait until it has."""
    if not number or _state(number).get("JobState") in ENDED:
        return
    subprocess.run(["scancel", "--quiet", number], capture_output=True, check=False)
    end = time.monotonic() + SETTLE_S
    while time.monotonic() < end and _state(number).get("JobState") not in {*ENDED, None}:
        with contextlib.suppress(KeyboardInterrupt):
            time.sleep(POLL_S)


def _wait(job: Job, folder: Path, number: str, tick: Callable[[str], None]) -> str:
    """The state in which the job ended."""
    submitted = answered = time.monotonic()
    lost: float | None = None
    while True:
        found = _state(number)
        now = time.monotonic()
        state = found.get("JobState", "")
        if state:
            answered = now
        elif now - answered > PATIENCE_S:
            raise outcome.LaunchError(f"{job.script}: SLURM has not answered about job {number} for {PATIENCE_S:g} s")
        if state in ENDED:
            lost = lost or now
            if not (job.requeue and state in MAY_COME_BACK and now - lost < SETTLE_S):
                tick(ENDED[state].partition(";")[0].format(limit=found.get("TimeLimit", "")))
                return state
        elif state:
            lost = None
        if state == "PENDING" and found.get("Reason") in NEVER_STARTS:
            raise UserError(
                f"launch {job.script}: SLURM would never start it ({found['Reason']}); see `scontrol show partition`"
            )
        tick(_say(number, found))
        if state == "RUNNING" and job.timeout_s is not None and _seconds(found["RunTime"]) > job.timeout_s:
            _ask_for_stacks(job, folder, number)
            raise outcome.timeout(job, folder, f"{job.timeout_s:g} s")
        time.sleep(min(SLOWEST_POLL_S, 0.2 + (now - submitted) / 50))


def _say(number: str, found: State) -> str:
    state = found.get("JobState")
    if state is None:
        return f"job {number}, SLURM does not answer"
    if state == "PENDING":
        again = f", start {int(found['Restarts']) + 1}" if found.get("Restarts", "0") != "0" else ""
        reason = f" ({found['Reason']})" if found.get("Reason", "None") != "None" else ""
        return f"job {number}{again} waits{reason}"
    return f"job {number} {state.lower()}"


def _state(number: str) -> State:
    """What SLURM says of a job; nothing where it does not answer."""
    shown = subprocess.run(
        ["scontrol", "-o", "show", "job", number], capture_output=True, text=True, check=False, env=_outside_of_jobs()
    )
    return dict(re.findall(r"(\w+)=(\S*)", shown.stdout)) if shown.returncode == 0 else {}


def _seconds(run_time: str) -> int:
    """Of a time like 1-02:03:04."""
    days, _, clock = run_time.rpartition("-")
    hours, minutes, seconds = map(int, clock.split(":"))
    return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds


def _ask_for_stacks(job: Job, folder: Path, number: str) -> None:
    """Let each rank write its stacks to its log, and wait until all have."""
    logs = [exchange.log_path(folder, rank) for rank in exchange.read_starts(folder)]
    before = {log: log.stat().st_size for log in logs}
    subprocess.run(["scancel", "--quiet", "--signal=USR1", number], capture_output=True, check=False)
    end = time.monotonic() + SETTLE_S
    while time.monotonic() < end and any(log.stat().st_size == before[log] for log in logs):
        time.sleep(POLL_S)
    time.sleep(POLL_S)


def _failure(job: Job, folder: Path, number: str, state: str) -> outcome.LaunchError:
    log = folder / LAUNCHER_LOG
    output = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    if state == "FAILED":
        return outcome.failure(job, folder, output, f"job {number} failed")
    limit = _state(number).get("TimeLimit", "")
    what = ENDED[state].format(limit=limit)
    return outcome.LaunchError(f"{job.script}: job {number} {what}")
