"""One strategy after another on the same model and batch: losses, bytes held by this rank, collectives of a step.

By hand: torchrun --nproc-per-node 2 06-sharding/states.py ddp zero1 fsdp
"""

import argparse
from contextlib import nullcontext

from efficient_training.launch.worker import worker
from efficient_training.measure.communication import Communication
from efficient_training.sharding.engine import engine
from efficient_training.sharding.held import held
from efficient_training.sharding.strategies import shard

import torch.distributed as dist
from model import arguments, batch, build, loss_of, make_optimizer, own


def prepare(strategy, sizes, w, bf16=False, bucket=1_000_000, zero=None):
    model = build(sizes, w.device)
    if strategy.startswith("deepspeed"):
        return engine(model, strategy, make_optimizer, bf16=bf16, bucket=bucket, zero=zero)
    return shard(model, strategy, make_optimizer, blocks=model.blocks)


def train(sharded, tokens, targets, steps):
    """Losses, averaged over ranks; from the last step the collectives, and the bytes held when gradients are there.

    Counting slows a step down, and the first two steps are not like the others: libraries learn an order in them.
    """
    losses = []
    for number in range(steps):
        with Communication(floor=16) if number == steps - 1 else nullcontext() as communication:
            loss = loss_of(sharded.model, tokens, targets)
            sharded.backward(loss)
            states = held(sharded.model, sharded.optimizer) if number == steps - 1 else None
            sharded.step()
        total = loss.detach().double().cpu()
        dist.all_reduce(total)
        losses.append(total.item() / dist.get_world_size())
    return {
        "losses": losses,
        "held": states,
        "calls": communication.calls,
        "bytes": communication.bytes,
        "sent": communication.sent,
    }


def run(w, strategies, sizes, sequences, steps):
    tokens, targets = (own(part, w) for part in batch(sizes["vocabulary"], sequences))
    for strategy in strategies:
        result = train(prepare(strategy, sizes, w), tokens, targets, steps)
        w.report(of="states", name=strategy, **result)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("strategies", nargs="+")
    sizes, sequences, steps, options = arguments(parser)
    with worker() as w:
        run(w, options.strategies, sizes, sequences, steps)
