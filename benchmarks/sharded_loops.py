"""Our FSDP2 loop against accelerate's (FSDP2 too) and DeepSpeed's (stage 3): the same model, batch and ranks.

Prints medians and ratios; the ratios are what counts, since all run on the same machine within the same minute, in
turns. Each turn has processes of its own; a step takes as long as its slowest rank, and memory is that of the largest.

    python benchmarks/sharded_loops.py [--ranks N] [--steps N] [--turns N] [--backend gloo|nccl] [--json FILE]
"""

import argparse
import json
import resource
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from efficient_training.launch import launch
from efficient_training.launch.worker import Worker, worker

SCRIPTS = Path(__file__).resolve().parents[1] / "notebooks" / "06-sharding"  # of the chapter, on the ranks' path
SIZES = {
    "cpu": {"width": 384, "blocks": 4, "vocabulary": 1024},
    "cuda": {"width": 2048, "blocks": 16, "vocabulary": 32768},
}
SEQUENCES, LENGTH = {"cpu": 4, "cuda": 32}, {"cpu": 64, "cuda": 512}  # of each rank
WARMUP = 3
BUCKET = 5_000_000  # numbers; DeepSpeed's default buffers would be larger than this model
LOOPS = {"ours": "FSDP2, our loop", "accelerate": "FSDP2 by accelerate", "deepspeed": "DeepSpeed, stage 3"}

Step = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def ours(w: Worker) -> Step:
    """The chapter's loop."""
    from model import build, make_optimizer

    from efficient_training.sharding.strategies import shard

    model = build(SIZES[w.device.type], w.device)
    sharded = shard(model, "fsdp", make_optimizer, blocks=model.blocks)
    return plain_step(sharded)


def deepspeed(w: Worker) -> Step:
    """The same loop around DeepSpeed's engine."""
    from model import build, make_optimizer

    from efficient_training.sharding.engine import engine

    model = build(SIZES[w.device.type], w.device)
    return plain_step(engine(model, "deepspeed-3", make_optimizer, bucket=BUCKET))


def plain_step(sharded: Any) -> Step:
    """Forward, backward, update."""
    from model import loss_of

    def step(tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        loss = loss_of(sharded.model, tokens, targets)
        sharded.backward(loss)
        sharded.step()
        return loss.detach()

    return step


def accelerate(w: Worker) -> Step:
    """The loop of accelerate's manual, under the chapter's `fsdp2.yaml`."""
    from accelerate import Accelerator
    from accelerate_on_cpu import allow_cpu
    from model import build, loss_of, make_optimizer

    allow_cpu(w.device)
    accelerator = Accelerator()
    model = build(SIZES[w.device.type])
    model, optimizer = accelerator.prepare(model, make_optimizer(model.parameters()))
    if not (accelerator.is_fsdp2 and accelerator.num_processes == w.ranks):
        raise RuntimeError("accelerate did something else than FSDP2 on all ranks")

    def step(tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        loss = loss_of(model, tokens, targets)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def measure(loop: str, steps: int) -> None:
    """One rank of one loop: report the seconds of its steps, its peak and its last loss."""
    from model import batch, own

    with worker() as w:
        kind = w.device.type
        whole = batch(SIZES[kind]["vocabulary"], SEQUENCES[kind] * w.ranks, LENGTH[kind])
        tokens, targets = (own(part, w) for part in whole)
        step = {"ours": ours, "accelerate": accelerate, "deepspeed": deepspeed}[loop](w)
        seconds = []
        for _ in range(WARMUP + steps):
            begin = time.perf_counter()
            loss = step(tokens, targets)
            if kind == "cuda":
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - begin)
        w.report(seconds=seconds[WARMUP:], peak=peak_bytes(kind), loss=loss.item())


def peak_bytes(kind: str) -> int:
    """Allocated on CUDA; resident on a CPU, the libraries included."""
    if kind == "cuda":
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def turn(loop: str, steps: int, ranks: int, backend: str | None) -> list[dict[str, Any]]:
    """What each rank of one launch reported."""
    how: dict[str, Any] = {"launcher": "accelerate", "config": SCRIPTS / "fsdp2.yaml"} if loop == "accelerate" else {}
    given = ("--loop", loop, "--steps", str(steps))
    path = {"PYTHONPATH": str(SCRIPTS)}
    made = launch(__file__, *given, ranks=ranks, backend=backend, environment=path, progress=False, **how)
    return [reports[0] for reports in made.reports.values()]


def main() -> None:
    """Run the three loops in turns, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=10, help="of each turn")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--backend", choices=["gloo", "nccl"], help="by default nccl where there are GPUs")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--loop", choices=list(LOOPS), help=argparse.SUPPRESS)  # given to the ranks alone
    arguments = parser.parse_args()
    if arguments.loop:
        measure(arguments.loop, arguments.steps)
        return
    turns: dict[str, list[list[dict[str, Any]]]] = {loop: [] for loop in LOOPS}
    for _ in range(arguments.turns):
        for loop, made in turns.items():
            made.append(turn(loop, arguments.steps, arguments.ranks, arguments.backend))
    rows = {
        loop: {
            "seconds": statistics.median(
                max(step) for ranks in made for step in zip(*(rank["seconds"] for rank in ranks), strict=True)
            ),
            "peak": max(rank["peak"] for ranks in made for rank in ranks),
            "loss": statistics.fmean(rank["loss"] for ranks in made for rank in ranks),
        }
        for loop, made in turns.items()
    }
    first = rows["ours"]
    print(f"{'loop':22} {'step, ms':>10} {'time ratio':>11} {'peak, MiB':>10} {'peak ratio':>11}")
    for loop, row in rows.items():
        print(
            f"{LOOPS[loop]:22} {1e3 * row['seconds']:10.1f} {first['seconds'] / row['seconds']:11.2f} "
            f"{row['peak'] / 2**20:10.0f} {first['peak'] / row['peak']:11.2f}"
        )
    apart = max(abs(row["loss"] - first["loss"]) for row in rows.values()) / first["loss"]
    print(f"ratios: ours over theirs; the last losses differ by {apart:.0e}")
    if apart > 1e-4:
        raise SystemExit("the loops did not do the same")
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
