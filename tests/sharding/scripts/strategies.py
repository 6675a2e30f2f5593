"""Every strategy on shapes that no number of ranks divides; what is refused; the switches between micro-batches."""

import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, cast

import torch
from torch import nn

from efficient_training.errors import UserError
from efficient_training.launch.worker import worker
from efficient_training.measure.communication import Communication
from efficient_training.sharding.engine import engine
from efficient_training.sharding.held import gathered, held, local
from efficient_training.sharding.strategies import Sharded, shard, zero1
from efficient_training.sharding.synchronization import no_sync, set_requires_gradient_sync
from efficient_training.sharding.words import STRATEGIES

make_optimizer = partial(torch.optim.AdamW, lr=1e-3)


def build() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3), nn.Tanh(), nn.Linear(3, 1))


def refused(action: Callable[[], Any]) -> str | None:
    try:
        action()
    except UserError as error:
        return str(error)
    return None


def micro_batches(model: Any, contexts: Sequence[Callable[[], Any]]) -> int:
    x = torch.ones(2, 5)
    with Communication() as communication:
        for context in contexts:
            with context():
                model(x).sum().backward()
    moved: dict[str, int] = communication.bytes
    return moved.get("all-reduce", 0) + moved.get("reduce-scatter", 0)


with worker() as w:
    strategies = [name for name in STRATEGIES if name != "hsdp"]
    x = torch.randn(4, 5, generator=torch.Generator().manual_seed(w.rank))
    for strategy in strategies:
        model = build()
        sharded: Sharded
        if strategy.startswith("deepspeed"):
            sharded = engine(model, strategy, make_optimizer, bucket=1000)
        else:
            sharded = shard(model, strategy, make_optimizer, blocks=[model[2]])
        for _ in range(2):
            sharded.backward(sharded.model(x).square().mean())
            states = held(sharded.model, sharded.optimizer)
            sharded.step()
        states = held(sharded.model, sharded.optimizer) | {"gradients": states["gradients"]}
        after = sharded.model(x).square().mean().item()
        w.report(of="states", strategy=strategy, held=states, loss=after)

    plain = build()
    w.report(
        of="refused",
        engine=refused(lambda: shard(plain, "deepspeed-1", make_optimizer)),
        no_engine=refused(lambda: engine(plain, "ddp", make_optimizer)),
        policy=refused(lambda: shard(plain, "ddp", make_optimizer, policy=cast(Any, object()))),
        partial=refused(lambda: zero1(plain.parameters(), cast(Any, lambda parameters: None))),
        unknown=refused(lambda: shard(plain, "zero3", make_optimizer)),
        plain=refused(lambda: set_requires_gradient_sync(plain, False)),
        plain_context=refused(lambda: no_sync(plain).__enter__()),
    )

    for strategy in ("ddp", "fsdp", "fsdp1-full"):
        wrapped = shard(build(), strategy, make_optimizer).model
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            both = micro_batches(wrapped, [nullcontext, nullcontext])
            wrapped.zero_grad()
            last = micro_batches(wrapped, [partial(no_sync, wrapped), nullcontext])
        names = {warning.category.__name__ for warning in caught}
        w.report(of="no_sync", strategy=strategy, both=both, last=last, warned="OtherBackendWarning" in names)

    for strategy in ("ddp", "fsdp"):
        wrapped = shard(build(), strategy, make_optimizer).model
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            set_requires_gradient_sync(wrapped, False)
            off = micro_batches(wrapped, [nullcontext])
            set_requires_gradient_sync(wrapped, True)
            on = micro_batches(wrapped, [nullcontext])
        names = {warning.category.__name__ for warning in caught}
        norms = sum(
            local(one.grad).double().square().sum().item() for one in wrapped.parameters() if one.grad is not None
        )
        w.report(of="switch", strategy=strategy, off=off, on=on, warned="OtherBackendWarning" in names, norms=norms)

    wrapped = shard(build(), "fsdp-no-reshard", make_optimizer).model
    before = gathered(wrapped)
    loss = wrapped(x).sum()
    w.report(of="gathered", before=before, after_forward=gathered(wrapped))
    loss.backward()
sys.exit()
