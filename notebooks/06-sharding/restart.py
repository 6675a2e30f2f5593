"""The run of `resume.py`, in which a rank dies: while it saves, or in the middle of a step.

By hand: torchrun --standalone --nproc-per-node 2 --max-restarts 1 restart.py --folder checkpoints --die-at 8 --while saving

Only the death is here. Nothing is done about it: torch elastic stops the other ranks and starts all of them anew, and
they resume as `resume.py` always does.
"""

import argparse
import os
import signal
from pathlib import Path
from typing import Any

from efficient_training.launch.worker import worker

import resume
import torch.distributed.checkpoint as dcp


def die() -> None:
    """End this process as the kernel does when memory runs out: at once, and with no chance to clean up."""
    os.kill(os.getpid(), signal.SIGKILL)


class DyingWriter(dcp.FileSystemWriter):
    """Writes this rank's file, and dies before the checkpoint is whole."""

    def write_data(self, *arguments: Any) -> Any:
        super().write_data(*arguments)
        die()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=9)
    parser.add_argument("--save-every", type=int, default=2)
    parser.add_argument("--die-at", type=int, default=8)
    parser.add_argument("--while", dest="moment", choices=["saving", "stepping"], default="saving")
    arguments = parser.parse_args()

    with worker() as w:
        mortal = w.attempt == 0 and w.rank == w.ranks - 1

        def dies(step: int, moment: str) -> bool:
            return mortal and step == arguments.die_at and moment == arguments.moment

        def save(folder: Path, step: int, *parts: Any) -> Path:
            writer = DyingWriter if dies(step, "saving") else dcp.FileSystemWriter
            return resume.save(folder, step, *parts, writer=writer)

        def after_backward(step: int) -> None:
            if dies(step, "stepping"):
                die()

        resume.train(
            w, arguments.folder, arguments.steps, arguments.save_every, save=save, after_backward=after_backward
        )


if __name__ == "__main__":
    main()
