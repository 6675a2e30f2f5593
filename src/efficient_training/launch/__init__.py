"""Launches of worker scripts on several processes: here by torchrun, DeepSpeed or accelerate, on a cluster by SLURM.

Existing engines start the ranks, find the machines and restart what failed. This package adds what a notebook and a
user want of any of them: one call, a log for each rank, the failing rank's own traceback, stacks at a timeout,
reports, and no process left behind. A script needs nothing of it to be launched, and what `launch.worker` gives it
works under plain torchrun too.
"""

import time
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from ..errors import UserError
from . import local, slurm
from .checks import check, check_here, check_kinds
from .folder import Folder
from .job import Job
from .outcome import Launched, LaunchError, check_ranks
from .progress import Progress

__all__ = ["LaunchError", "Launched", "launch"]


def launch(
    script: str | Path,
    *arguments: str,
    ranks: int = 1,
    nodes: int = 1,
    launcher: str = "torchrun",
    backend: str | None = None,
    timeout_s: float | None = None,
    restarts: int = 0,
    environment: Mapping[str, str] | None = None,
    folder: str | Path | None = None,
    progress: bool = True,
    endpoint: str | None = None,
    port: int | None = None,
    config: str | Path | None = None,
    partition: str = "",
    account: str = "",
    gpus_per_node: int | None = None,
    cpus_per_rank: int = 1,
    requeue: bool = False,
) -> Launched:
    """Run `script` with `arguments` on `ranks` processes in all, and wait for them.

    - `launcher`: torchrun, slurm, deepspeed, or accelerate with its `config` file; `nodes` get as many ranks each.
    - `backend`: gloo (on the CPU) or nccl (a GPU for each rank); by default nccl where this machine has GPUs.
    - `timeout_s`: after it, every rank's stacks are in the error; under SLURM it is the job's time limit too, from the
      job's start, rounded up to minutes.
    - `restarts`: how often torch elastic starts all ranks again after one has failed.
    - `environment`: is added to the ranks'; `OMP_NUM_THREADS` is 1 where it does not say otherwise.
    - `folder`: for logs and reports, kept: a new or empty one, or an earlier launch's, whose logs are then replaced; by
      default a temporary one that goes with the result.
    - `progress`: say what is going on, on the terminal, never in a notebook's output.
    - `endpoint`: HOST:PORT of one of several machines, on each of which the same torchrun is launched; each launch
      collects its own ranks.
    - `port`: for the rendezvous on one machine; a free one by default.
    - `partition`, `account`, `gpus_per_node` (as many as ranks, none for gloo), `cpus_per_rank`, `requeue`: SLURM's.

    Raises `UserError` on what cannot be launched, and `LaunchError` where a rank fails or the time is over. However
    this ends, by Ctrl-C too or by kill -9 of any one process, no process of it is left, and no job.
    """
    options: dict[str, Any] = {
        **{"ranks": ranks, "nodes": nodes, "launcher": launcher, "timeout_s": timeout_s, "restarts": restarts},
        **{"endpoint": endpoint, "port": port, "partition": partition, "account": account, "requeue": requeue},
        **{"gpus_per_node": gpus_per_node, "cpus_per_rank": cpus_per_rank},
    }
    others = {"backend": backend, "config": config, "folder": folder, "progress": progress}
    check_kinds(script, arguments, environment, **options, **others)
    job = Job(
        script=Path(script),
        arguments=tuple(map(str, arguments)),
        backend=backend or None,
        config=None if config is None else Path(config),
        environment=dict(environment or {}),
        **options,
    )
    place = Folder(None if folder is None else Path(folder), shared=launcher == "slurm")
    return run(job, place, progress=progress)


def run(job: Job, place: Folder, *, progress: bool = True, follow: IO[str] | None = None) -> Launched:
    """Run a job that has been described; see `launch`. What rank 0 writes is copied to `follow` as it comes."""
    check(job)
    with Progress(job, progress, follow) as shown:
        for warning in check_here(job):
            shown.line(warning)
        folder = shown.folder = place.make()
        started = time.monotonic()
        try:
            engine = slurm if job.launcher == "slurm" else local
            engine.run(job, folder, shown.tick)
            check_ranks(job, folder)
            result = Launched(folder, time.monotonic() - started)
        except BaseException as error:
            refused = isinstance(error, UserError) and not isinstance(error, LaunchError)
            if place.temporary or refused:
                place.discard()
            place.release()
            raise
        if place.temporary:
            weakref.finalize(result, place.discard)
        else:
            place.release()
        return result
