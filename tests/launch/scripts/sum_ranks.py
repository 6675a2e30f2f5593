"""Adds up the ranks' numbers, then does what its argument says, on the last rank."""

import os
import signal
import sys
import time

import torch
import torch.distributed as dist

from efficient_training.launch.worker import worker


def misbehave(how: str) -> None:
    match how:
        case "raise":
            raise ValueError("a bad batch")
        case "exit":
            sys.exit(7)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "hang":
            time.sleep(1000)


with worker() as w:
    total = torch.tensor(float(w.rank + 1))
    dist.all_reduce(total)
    w.report(step="sum", total=total.item(), ranks=w.ranks, device=str(w.device), attempt=w.attempt)
    print(f"rank {w.rank} summed", flush=True)
    if w.rank == w.ranks - 1 and w.attempt == 0:
        misbehave(sys.argv[1] if len(sys.argv) > 1 else "nothing")
    dist.all_reduce(total)  # the others notice here
    w.report(step="end", threads=torch.get_num_threads())
