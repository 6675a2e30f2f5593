"""What a worker script uses: its rank and device, the process group, and reports to whoever launched it."""

import contextlib
import faulthandler
import json
import os
import signal
import sys
import traceback
from types import TracebackType
from typing import Any, NoReturn, Self

import torch
import torch.distributed as dist
from torch.distributed import HashStore  # type: ignore[attr-defined]

from ..errors import UserError
from . import exchange

CUDA_BACKEND = "cpu:gloo,cuda:nccl"
"""nccl for tensors on the GPU; gloo for those that offloading keeps on the CPU."""


class Worker:
    """One rank. A context manager: within it the process group stands; leaving it ends the process.

    `rank` of `ranks`, `local_rank` on its machine; `device`, the GPU of its own or the CPU; `attempt`, how often the
    ranks were started before, 0 the first time.
    """

    def __init__(self, backend: str | None = None) -> None:
        self.rank = exchange.rank()
        self.ranks = int(os.environ.get("WORLD_SIZE", "1"))
        self.local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        self.attempt = exchange.attempt()
        asked = backend or os.environ.get(exchange.BACKEND)
        self.backend = asked or (CUDA_BACKEND if torch.cuda.is_available() else "gloo")
        if self.backend == "nccl":
            self.backend = CUDA_BACKEND
        self.device = torch.device("cuda", self.local_rank) if "nccl" in self.backend else torch.device("cpu")
        self._reports = 0

    def __enter__(self) -> Self:
        if self.device.type == "cuda":
            found = torch.cuda.device_count() if torch.cuda.is_available() else 0
            if self.local_rank >= found:
                raise UserError(
                    f"rank {self.rank} needs a GPU of its own for nccl, and its machine has {found}; "
                    "launch as many ranks as there are GPUs, or take the backend gloo"
                )
            torch.cuda.set_device(self.device)
        else:
            # One, unless whoever launched this says otherwise: ranks share the cores.
            torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
        if hasattr(faulthandler, "register"):
            faulthandler.register(signal.SIGUSR1, all_threads=True, chain=False)
        own = self.device if self.device.type == "cuda" else None
        if "RANK" in os.environ:
            dist.init_process_group(self.backend, device_id=own)
        else:
            dist.init_process_group(self.backend, store=HashStore(), rank=0, world_size=1, device_id=own)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> NoReturn:
        """End the process: the interpreter's own shutdown, with a process group's threads alive, is not reliable."""
        if error is None:
            if dist.is_initialized():
                dist.barrier()
                dist.destroy_process_group()
            _leave(0)
        if isinstance(error, SystemExit) and error.code in (None, 0):
            _leave(0)
        exchange.record_error(error, trace)
        if not isinstance(error, SystemExit):
            traceback.print_exception(kind, error, trace)
            _leave(1)
        _leave(error.code if isinstance(error.code, int) else 1)

    def report(self, **values: Any) -> None:
        """Hand values that JSON can hold to whoever launched this; where nobody did, print them as one line."""
        folder = exchange.folder()
        if folder is None:
            print(json.dumps({"rank": self.rank, **values}), flush=True)
            return
        exchange.write_report(folder, self._reports, values)
        self._reports += 1


def _leave(code: int) -> NoReturn:
    if code == 0:
        exchange.write_end()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    os._exit(code)


def worker(backend: str | None = None) -> Worker:
    """This process as one rank; `backend` is gloo or nccl, by default the launch's, else the device's.

    Also runs alone, without a launcher, as the one rank of one. Entering it raises `UserError` where `nccl` finds no
    GPU for this rank.
    """
    return Worker(backend)
