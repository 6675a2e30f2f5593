"""FSDP2 with and without its CPU offload: losses, and where each rank's bytes are."""

import argparse

from efficient_training.launch.worker import worker
from efficient_training.sharding.held import local, storage_bytes

import torch
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.nn import functional as F


def build(width, layers):
    """Square linear layers between a narrow first and a narrow last, with seeded weights."""
    torch.manual_seed(0)
    inner = [part for _ in range(layers) for part in (nn.GELU(), nn.Linear(width, width))]
    return nn.Sequential(nn.Linear(64, width), *inner, nn.GELU(), nn.Linear(width, 64))


def shard(model, offload, pinned):
    """Each linear layer a unit of its own; with `offload`, all on the host."""
    precision = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16,
        reduce_dtype=torch.float32,
    )
    policy = CPUOffloadPolicy(pin_memory=pinned) if offload else OffloadPolicy()
    for layer in [*model, model]:
        if isinstance(layer, nn.Linear | nn.Sequential):
            fully_shard(layer, mp_policy=precision, offload_policy=policy)
    return model


def run(this, offload, arguments):
    """A few steps on the same rows, of which each rank takes its part."""
    on_gpu = this.device.type == "cuda"
    model = build(arguments.width, arguments.layers)
    if on_gpu and not offload:
        model.to(this.device)
    model = shard(model, offload, pinned=on_gpu)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    generator = torch.Generator().manual_seed(1)
    x, y = (torch.randn(arguments.rows, 64, generator=generator) for _ in range(2))
    x, y = (rows.chunk(this.ranks)[this.rank].to(this.device) for rows in (x, y))
    losses = []
    for _ in range(arguments.steps):
        loss = F.mse_loss(model(x).float(), y)
        loss.backward()
        tensors = {
            "weights": [local(p) for p in model.parameters()],
            "gradients": [local(p.grad) for p in model.parameters()],
        }
        optimizer.step()
        states = [s for state in optimizer.state.values() for name, s in state.items() if name != "step"]
        tensors["optimizer state"] = [local(s) for s in states]
        held = {name: storage_bytes(parts) for name, parts in tensors.items()}
        devices = {name: str(parts[0].device.type) for name, parts in tensors.items()}
        optimizer.zero_grad()
        torch.distributed.all_reduce(mean := loss.detach() / this.ranks)
        losses.append(mean.item())
    return {"losses": losses, "held": held, "devices": devices}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--steps", type=int, default=4)
    given = parser.parse_args()
    with worker() as this:
        for offload in (False, True):
            this.report(offload=offload, **run(this, offload, given))
