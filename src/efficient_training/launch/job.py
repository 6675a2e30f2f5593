"""What is to be launched, and the environment of its ranks."""

import math
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

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
