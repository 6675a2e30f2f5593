"""The norm of all gradients, when each rank has a part of them: the right ways, and the ways that look right."""

from efficient_training.launch.worker import worker
from efficient_training.sharding.held import local
from efficient_training.sharding.strategies import shard

import torch
from model import arguments, batch, build, loss_of, make_optimizer, own

LARGEST = 0.1  # the norm to clip to


def torch_way(model):
    """PyTorch's own function. Under FSDP2 the gradients are DTensors, and so is the norm, of which `full_tensor` is the
    sum over ranks."""
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), LARGEST)
    return norm.full_tensor() if hasattr(norm, "full_tensor") else norm


def local_way(model):
    """The norm of what this rank holds: wrong as soon as a rank holds a part."""
    parts = [local(parameter.grad) for parameter in model.parameters() if parameter.grad is not None]
    norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(part) for part in parts]))
    for part in parts:
        part.mul_(min(1.0, LARGEST / (norm.item() + 1e-6)))
    return norm


def fsdp1_way(model):
    """FSDP1's method, which adds up over ranks."""
    return model.clip_grad_norm_(LARGEST)


WAYS = {
    "ddp.torch": ("ddp", torch_way),
    "fsdp.torch": ("fsdp", torch_way),
    "fsdp.local": ("fsdp", local_way),
    "fsdp1.torch": ("fsdp1-full", torch_way),
    "fsdp1.method": ("fsdp1-full", fsdp1_way),
}


def run(w, sizes):
    tokens, targets = (own(part, w) for part in batch(sizes["vocabulary"], 8))
    for name, (strategy, clip) in WAYS.items():
        model = build(sizes, w.device)
        sharded = shard(model, strategy, make_optimizer, blocks=model.blocks)
        sharded.backward(loss_of(sharded.model, tokens, targets))
        norm = clip(sharded.model)
        squares = sum(local(p.grad).double().square().sum() for p in sharded.model.parameters() if p.grad is not None)
        w.report(of="clipping", name=name, norm=norm.item(), clipped_squares=squares.item())


if __name__ == "__main__":
    sizes, *_ = arguments()
    with worker() as w:
        run(w, sizes)
