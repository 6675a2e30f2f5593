"""The link between the ranks: how long all-reduces of a small and of a large tensor take, and a step under each strategy."""

import time
from statistics import median

from efficient_training.launch.worker import worker
from efficient_training.sharding.strategies import shard

import torch
import torch.distributed as dist
from model import arguments, batch, build, loss_of, make_optimizer, own

SMALL, LARGE = 256, 4_000_000  # numbers in fp32
REPEATS = 7


def seconds(action, device):
    """The median time of `action` over several calls, the first two left out; every rank waits for the others."""
    times = []
    for _ in range(REPEATS + 2):
        dist.barrier()
        begin = time.perf_counter()
        action()
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    return median(times[2:])


def step(sharded, tokens, targets):
    sharded.backward(loss_of(sharded.model, tokens, targets))
    sharded.step()


def run(w, sizes):
    small, large = (torch.zeros(numbers, device=w.device) for numbers in (SMALL, LARGE))
    times = {"small": seconds(lambda: dist.all_reduce(small), w.device)}
    times["large"] = seconds(lambda: dist.all_reduce(large), w.device)
    tokens, targets = (own(part, w) for part in batch(sizes["vocabulary"], 8))
    for strategy in ("ddp", "fsdp", "fsdp-no-reshard"):
        model = build(sizes, w.device)
        sharded = shard(model, strategy, make_optimizer, blocks=model.blocks)
        times[strategy] = seconds(lambda sharded=sharded: step(sharded, tokens, targets), w.device)
    w.report(of="link", name="times", small_bytes=small.nbytes, large_bytes=large.nbytes, **times)


if __name__ == "__main__":
    sizes, *_ = arguments()
    with worker() as w:
        run(w, sizes)
