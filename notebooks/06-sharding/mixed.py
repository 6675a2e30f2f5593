"""16-bit numbers in sharded runs: what is sent in which dtype, what the reduction loses, and who keeps master weights."""

from contextlib import nullcontext
from functools import partial

from efficient_training.launch.worker import worker
from efficient_training.measure.communication import Communication
from efficient_training.sharding.held import held, local
from efficient_training.sharding.strategies import shard

import torch
from model import arguments, batch, build, loss_of, make_optimizer, own
from torch.distributed.fsdp import MixedPrecisionPolicy

BF16, FP32 = torch.bfloat16, torch.float32
POLICIES = {
    "fp32": None,
    "bf16_reduced_in_fp32": MixedPrecisionPolicy(param_dtype=BF16, reduce_dtype=FP32),
    "bf16_reduced_in_bf16": MixedPrecisionPolicy(param_dtype=BF16, reduce_dtype=BF16),
}
STEPS = 5


def policies(w, sizes):
    tokens, targets = (own(part, w) for part in batch(sizes["vocabulary"], 8))
    reference = None
    for name, policy in POLICIES.items():
        model = build(sizes, w.device)
        sharded = shard(model, "fsdp", make_optimizer, blocks=model.blocks, policy=policy)
        losses = []
        for number in range(STEPS):
            with Communication(floor=16) if number == STEPS - 1 else nullcontext() as communication:
                loss = loss_of(sharded.model, tokens, targets)
                sharded.backward(loss)
            states = held(sharded.model, sharded.optimizer)
            if number == 0:
                gradient = torch.cat([local(parameter.grad).flatten() for parameter in model.parameters()])
            losses.append(loss.item())
            sharded.step()
        if name == "bf16_reduced_in_fp32":
            reference = gradient
        error = None if reference is None else ((gradient - reference).norm() / reference.norm()).item()
        w.report(
            of="mixed", name=name, losses=losses, held=states, bytes=communication.bytes, sent=communication.sent,
            reduction_error=error,
        )  # fmt: skip


def masters(w, sizes):
    """One step of a learning rate at which bf16 weights do not move, from a model that was loaded in bf16."""
    tokens, targets = (own(part, w) for part in batch(sizes["vocabulary"], 8))
    policy = MixedPrecisionPolicy(param_dtype=BF16, reduce_dtype=FP32)
    for name, dtype in (("as_loaded", BF16), ("upcast", FP32)):
        model = build(sizes, w.device).to(BF16).to(dtype)
        sharded = shard(model, "fsdp", partial(torch.optim.AdamW, lr=1e-6), blocks=model.blocks, policy=policy)
        before = [local(parameter).clone() for parameter in model.parameters()]
        sharded.backward(loss_of(sharded.model, tokens, targets))
        states = held(sharded.model, sharded.optimizer)
        sharded.optimizer.step()
        states["optimizer state"] = held(sharded.model, sharded.optimizer)["optimizer state"]
        moved = sum((local(now) != was).sum().item() for now, was in zip(model.parameters(), before, strict=True))
        share = moved / sum(was.numel() for was in before)
        w.report(of="masters", name=name, weight=str(next(model.parameters()).dtype), held=states, moved=share)


def run(w, sizes):
    policies(w, sizes)
    masters(w, sizes)


if __name__ == "__main__":
    sizes, *_ = arguments()
    with worker() as w:
        run(w, sizes)
