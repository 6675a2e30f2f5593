"""The command `launch`: a user's own script on several processes, here or through SLURM."""

import contextlib
import io
import json
import os
import shlex
import signal
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from .errors import UserError
from .launch import LaunchError, run, slurm
from .launch.checks import check
from .launch.commands import command
from .launch.folder import Folder
from .launch.job import LAUNCHERS, Job, environment
from .launch.progress import mute

CONTEXT = {"ignore_unknown_options": True, "allow_interspersed_args": False}
"""What stands behind the script is the script's."""


def launch_script(
    script: Annotated[Path, typer.Argument(help="The script that each rank runs.", show_default=False)],
    arguments: Annotated[list[str] | None, typer.Argument(help="Its arguments.", show_default=False)] = None,
    ranks: Annotated[int, typer.Option(help="Processes in all, as many on each node.")] = 1,
    nodes: Annotated[int, typer.Option(help="Machines.")] = 1,
    launcher: Annotated[str, typer.Option(help=f"{', '.join(LAUNCHERS)}.")] = "torchrun",
    backend: Annotated[
        str | None, typer.Option(help="gloo or nccl, for scripts that use launch.worker; by default nccl with GPUs.")
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(help="Seconds, after which every rank's stack is shown; the time limit under SLURM.")
    ] = None,
    restarts: Annotated[int, typer.Option(help="How often all ranks start again after one has failed.")] = 0,
    endpoint: Annotated[str | None, typer.Option(help="torchrun on several nodes: HOST:PORT of one of them.")] = None,
    port: Annotated[int | None, typer.Option(help="A port on this machine; a free one by default.")] = None,
    config: Annotated[Path | None, typer.Option(help="accelerate: its config file, YAML.")] = None,
    partition: Annotated[str, typer.Option(help="SLURM.")] = "",
    account: Annotated[str, typer.Option(help="SLURM.")] = "",
    gpus_per_node: Annotated[
        int | None, typer.Option(help="SLURM; as many as ranks by default, none for gloo.", show_default=False)
    ] = None,
    cpus_per_rank: Annotated[int, typer.Option(help="SLURM.")] = 1,
    requeue: Annotated[bool, typer.Option("--requeue", help="SLURM: start again after a lost node.")] = False,
    folder: Annotated[
        Path | None, typer.Option(help="For logs and reports; launches/<script>-<time> by default.", show_default=False)
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be run or submitted.")] = False,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="SLURM: wait for the job, and cancel it on Ctrl-C.")
    ] = True,
) -> int:
    """Launch a script on several processes: by torchrun, DeepSpeed, accelerate, or SLURM."""
    job = Job(
        script=script,
        arguments=tuple(arguments or ()),
        ranks=ranks,
        nodes=nodes,
        launcher=launcher,
        backend=backend,
        timeout_s=timeout,
        restarts=restarts,
        endpoint=endpoint,
        port=port,
        config=config,
        partition=partition,
        account=account,
        gpus_per_node=gpus_per_node,
        cpus_per_rank=cpus_per_rank,
        requeue=requeue,
        environment={name: os.environ[name] for name in ("OMP_NUM_THREADS",) if name in os.environ},
    )
    check(job)
    if not wait and launcher != "slurm":
        raise UserError(f"--no-wait is of the launcher slurm; {launcher} runs here, and is waited for")
    named = Path("launches", f"{script.stem}-{time.strftime('%Y%m%d-%H%M%S')}")
    place = Folder(folder or named, new=folder is None)
    if dry_run:
        print(describe(job, place.path), end="")
        return 0
    if not wait:
        print(f"job {submit(job, place)} submitted; logs: {_short(place.path)}")
        return 0
    if isinstance(sys.stdout, io.TextIOWrapper):
        # What cannot be shown is not to end the run.
        sys.stdout.reconfigure(errors="backslashreplace")
    # A scheduler's end of this process is to leave as orderly as Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        result = run(job, place, follow=sys.stdout)
    except LaunchError as error:
        _tell(f"error: {error}\nlogs: {_short(place.path)}")
        return 1
    except KeyboardInterrupt:
        _tell(f"interrupted; all ranks are ended; logs: {_short(place.path)}")
        return 130
    lines = [json.dumps({"rank": rank, **report}) for rank, reports in result.reports.items() for report in reports]
    many = "s" if ranks > 1 else ""
    lines += [f"{script}: {ranks} rank{many} ended after {result.seconds:.1f} s; logs: {_short(place.path)}"]
    try:
        print("\n".join(lines), flush=True)
    except BrokenPipeError:
        mute(sys.stdout)  # else the interpreter's end would fail
    return 0


def _tell(text: str) -> None:
    """To stderr; where nobody hears it, the exit code still says it."""
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def submit(job: Job, place: Folder) -> str:
    """Submit a job that nobody waits for; returns its number. Where it is refused, nothing of it is left."""
    folder = place.make()
    try:
        number = slurm.submit(job, folder)
    except BaseException:
        place.discard()
        raise
    place.note(job=number)
    place.release()
    return number


def describe(job: Job, folder: Path) -> str:
    """What a launch would do, to be read, or to be done by hand: a job script, or commands of a shell."""
    if job.launcher == "slurm":
        return slurm.script(job, folder)
    lines = [f"export {name}={shlex.quote(value)}" for name, value in environment(job, folder).items()]
    return "\n".join([f"mkdir -p {shlex.quote(str(folder))}", *lines, shlex.join(command(job, folder))]) + "\n"


def _short(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
