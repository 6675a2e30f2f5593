"""The command `launch`: a user's own script on several processes, here or through SLURM."""

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
from .launch import LaunchError, prepare, run, slurm
from .launch.commands import command
from .launch.job import LAUNCHERS, Job, check, environment

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
    place = (folder or Path("launches", f"{script.stem}-{time.strftime('%Y%m%d-%H%M%S')}")).absolute()
    if dry_run:
        print(describe(job, place), end="")
        return 0
    if not wait:
        print(f"job {slurm.submit(job, prepare(job, place))} submitted; logs: {_short(place)}")
        return 0
    # A scheduler's end of this process is to leave as orderly as Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        result = run(job, place, follow=sys.stdout)
    except LaunchError as error:
        print(f"error: {error}\nlogs: {_short(place)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"interrupted; all ranks are ended; logs: {_short(place)}", file=sys.stderr)
        return 130
    for rank, reports in result.reports.items():
        for report in reports:
            print(json.dumps({"rank": rank, **report}))
    print(f"{script}: {ranks} rank{'s' if ranks > 1 else ''} ended after {result.seconds:.1f} s; logs: {_short(place)}")
    return 0


def describe(job: Job, folder: Path) -> str:
    """What a launch would do, to be read, or to be done by hand: a job script, or commands of a shell."""
    if job.launcher == "slurm":
        return slurm.script(job, folder)
    lines = [f"export {name}={shlex.quote(value)}" for name, value in environment(job, folder).items()]
    return "\n".join([f"mkdir -p {shlex.quote(str(folder))}", *lines, shlex.join(command(job, folder))]) + "\n"


def _short(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
