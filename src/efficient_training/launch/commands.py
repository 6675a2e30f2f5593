"""The command lines of the launchers: each runs this package's `launch.rank` with the script and its arguments."""

import sys
from collections.abc import Sequence
from pathlib import Path

from .job import Job, free_port

TORCHRUN = (sys.executable, "-m", "torch.distributed.run")
"""torchrun by the interpreter that runs this, whatever stands on the PATH."""
RANK_MODULE = "efficient_training.launch.rank"
RANK = ("-m", RANK_MODULE)
"""torchrun's last options, before the script."""


def command(job: Job, folder: Path) -> list[str]:
    """The command that runs `job` from this machine; torchrun's on several is the same on each."""
    what = [str(job.script), *job.arguments]
    if job.launcher == "torchrun":
        return [*TORCHRUN, *torchrun_options(job, folder, _rendezvous(job)), *RANK, *what]
    if job.launcher == "deepspeed":
        return [*_deepspeed(job), *what]
    if job.launcher == "accelerate":
        return [*_accelerate(job, folder), *what]
    raise ValueError(job.launcher)


def torchrun_options(job: Job, folder: Path | str, rendezvous: Sequence[str]) -> list[str]:
    """torchrun's options; `rendezvous` are those for finding the other machines."""
    return [
        *rendezvous,
        f"--nproc-per-node={job.ranks_per_node}",
        f"--max-restarts={job.restarts}",
        f"--log-dir={folder}/torchrun",
    ]


def _rendezvous(job: Job) -> list[str]:
    if job.endpoint is None and job.port is None:
        return ["--standalone"]
    endpoint = job.endpoint or f"localhost:{job.port}"
    return [f"--nnodes={job.nodes}", "--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}", "--rdzv-id=launch"]


def _deepspeed(job: Job) -> list[str]:
    return [
        *(sys.executable, "-m", "deepspeed.launcher.runner"),
        # On one machine the launcher wants neither ssh nor a host file.
        *("--hostfile", "none", "--num_gpus", str(job.ranks), "--no_local_rank"),
        *("--master_addr", "127.0.0.1", "--master_port", str(job.port or free_port())),
        *("--module", RANK_MODULE),
    ]


def _accelerate(job: Job, folder: Path) -> list[str]:
    config = ["--config_file", str(job.config)] if job.config else []
    return [
        *(sys.executable, "-m", "accelerate.commands.launch", *config),
        *("--num_processes", str(job.ranks), "--num_machines", "1"),
        *("--main_process_port", str(job.port or free_port())),
        # accelerate sets OMP_NUM_THREADS itself.
        *("--num_cpu_threads_per_process", job.environment.get("OMP_NUM_THREADS", "1")),
        *("--log_dir", f"{folder}/torchrun"),
        *("--module", RANK_MODULE),
    ]
