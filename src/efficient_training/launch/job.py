"""What is to be launched, checked before anything starts."""

import math
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import UserError

LAUNCHERS = ("torchrun", "slurm", "deepspeed", "accelerate")
BACKENDS = ("gloo", "nccl")


@dataclass(frozen=True)
class Job:
    """A script on `ranks` processes in all, as many on each of `nodes` machines. See `launch` for the fields."""

    script: Path
    arguments: tuple[str, ...] = ()
    ranks: int = 1
    nodes: int = 1
    launcher: str = "torchrun"
    backend: str | None = None
    timeout_s: float | None = None
    restarts: int = 0
    endpoint: str | None = None
    port: int | None = None
    config: Path | None = None
    partition: str = ""
    account: str = ""
    gpus_per_node: int | None = None
    cpus_per_rank: int = 1
    requeue: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def ranks_per_node(self) -> int:
        """Processes on each machine."""
        return self.ranks // self.nodes

    @property
    def ranks_collected(self) -> int:
        """Processes whose reports and logs one launch collects: torchrun on several machines is launched on each."""
        return self.ranks_per_node if self.launcher == "torchrun" else self.ranks

    @property
    def minutes(self) -> int | None:
        """The time limit as SLURM takes it, in whole minutes."""
        return None if self.timeout_s is None else math.ceil(self.timeout_s / 60)


def check_here(job: Job) -> list[str]:
    """Refuse what this machine cannot run, in one line (`UserError`); returns a line for each thing to be warned of."""
    if job.port is not None:
        _check_port(job.port)
    return [] if job.launcher == "slurm" else _check_size(job)


def check(job: Job) -> None:
    """Refuse a job that no machine could run as it stands, in one line (`UserError`)."""
    where = f"launch {job.script}"
    if not job.script.is_file():
        raise UserError(f"{where}: no such script in {Path.cwd()}")
    if job.launcher not in LAUNCHERS:
        raise UserError(f"{where}: no launcher {job.launcher!r}; known: {', '.join(LAUNCHERS)}")
    if job.backend is not None and job.backend not in BACKENDS:
        raise UserError(f"{where}: no backend {job.backend!r}; known: {', '.join(BACKENDS)}")
    if job.ranks < 1 or job.nodes < 1 or job.ranks % job.nodes:
        raise UserError(
            f"{where}: {job.ranks} ranks on {job.nodes} nodes; take a number of ranks that is a multiple of the nodes'"
        )
    if job.restarts < 0 or (job.timeout_s is not None and job.timeout_s <= 0):
        raise UserError(f"{where}: restarts must be 0 or more, and the timeout above zero")
    if job.config is not None and job.launcher != "accelerate":
        raise UserError(f"{where}: only the launcher accelerate takes a config file")
    if job.config is not None and not job.config.is_file():
        raise UserError(f"{where}: no such config file: {job.config}")
    if job.launcher in ("deepspeed", "accelerate") and (job.nodes > 1 or job.restarts):
        raise UserError(
            f"{where}: the launcher {job.launcher} is used on one node and without restarts; take torchrun or slurm"
        )
    if job.launcher == "torchrun" and job.nodes > 1 and job.endpoint is None:
        raise UserError(
            f"{where}: on {job.nodes} nodes torchrun needs an endpoint, HOST:PORT of one of them, the same on each"
        )
    slurm_only = {"partition": job.partition, "account": job.account, "requeue": job.requeue}
    given = [name for name, value in slurm_only.items() if value and job.launcher != "slurm"]
    if given:
        raise UserError(f"{where}: {', '.join(given)} is of the launcher slurm; leave it out, or take launcher slurm")


def _check_port(port: int) -> None:
    """torchrun would take whatever listens there for its own rendezvous, and wait for it."""
    if not 0 < port < 65536:
        raise UserError(f"port {port}: must be from 1 to 65535")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            raise UserError(
                f"port {port}: cannot be used ({(error.strerror or str(error)).lower()}); "
                "choose another, or leave it out: a free one is found"
            ) from None


def _check_size(job: Job) -> list[str]:
    from ..machine import detect

    machine, wanted = detect(), job.ranks_per_node
    if job.backend == "nccl" or (job.backend is None and machine.gpus):
        if len(machine.gpus) < wanted:
            raise UserError(
                f"launch {job.script}: nccl needs a GPU for each rank: needs {wanted}, found {len(machine.gpus)}; "
                "take fewer ranks, or the backend gloo, which runs on the CPU"
            )
        return []
    if wanted > machine.cores:
        cores = f"{machine.cores} core" + ("s" if machine.cores > 1 else "")
        return [f"{wanted} ranks share {cores}: what they compute holds, their times mean little"]
    return []


def free_port() -> int:
    """A port that is free now, for launchers that cannot choose one themselves."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def environment(job: Job, folder: Path) -> dict[str, str]:
    """What the launch adds to the ranks' environment; the job's own goes over it."""
    from .. import native
    from . import exchange

    own = {
        exchange.FOLDER: str(folder),
        "OMP_NUM_THREADS": "1",
        # Else a restart after a killed rank may find the store of the ranks before.
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        # A crash in native code writes the rank's stack to its log.
        "PYTHONFAULTHANDLER": "1",
    }
    if "TORCH_EXTENSIONS_DIR" not in os.environ:
        # Else DeepSpeed compiles anew what the environment has already.
        own["TORCH_EXTENSIONS_DIR"] = str(native.folder())
    if job.backend is not None:
        own[exchange.BACKEND] = job.backend
    if job.backend == "gloo":
        own |= {"DS_ACCELERATOR": "cpu", "ACCELERATE_USE_CPU": "1"}
    return own | dict(job.environment)


def inherited() -> dict[str, str]:
    """This process's environment, without what an outer launch told it of its own rank and folder."""
    outer = ("TORCHELASTIC_", "EFFICIENT_TRAINING_LAUNCH")
    ranks = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"}
    return {name: value for name, value in os.environ.items() if not name.startswith(outer) and name not in ranks}
