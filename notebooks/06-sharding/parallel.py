"""A small transformer split within its layers (tensor and sequence parallelism) and between them (a pipeline).

By hand: torchrun --standalone --nproc-per-node 2 parallel.py

Each way reports its loss and how far its gradients are from one process's, what a rank keeps for backward, and, for
the split within layers, what it communicates.
"""

from efficient_training.launch.worker import Worker, worker
from efficient_training.measure.communication import Communication
from efficient_training.measure.saved import saved_tensors

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

HIDDEN, HEAD, FFN, BLOCKS = 64, 16, 256, 4
BATCH, SEQUENCE, MICRO_BATCHES = 8, 32, 4


class Attention(nn.Module):
    """Causal self-attention. How many heads there are follows from the weights that this rank has."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(HIDDEN, HIDDEN, bias=False) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (layer(x).unflatten(-1, (-1, HEAD)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(mixed.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """Two linear layers with a GELU between them."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(HIDDEN, FFN, bias=False), nn.Linear(FFN, HIDDEN, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.gelu(self.up(x)))


class Block(nn.Module):
    """Norm and attention, norm and feed-forward, each beside a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(HIDDEN), Attention()
        self.norm2, self.ffn = nn.LayerNorm(HIDDEN), FeedForward()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.ffn(self.norm2(x))


def build(device: torch.device) -> nn.Sequential:
    """The same weights in every process."""
    torch.manual_seed(0)
    return nn.Sequential(*(Block() for _ in range(BLOCKS))).to(device)


def tensor_parallel() -> dict[str, ParallelStyle]:
    """Of each pair of products the first is cut by columns, the second by rows."""
    whole = Replicate()
    return {
        "attention": PrepareModuleInput(input_layouts=whole, desired_input_layouts=whole),
        **{f"attention.{name}": ColwiseParallel() for name in "qkv"},
        "attention.o": RowwiseParallel(),
        "ffn.up": ColwiseParallel(),
        "ffn.down": RowwiseParallel(),
    }


def sequence_parallel() -> dict[str, ParallelStyle]:
    """The same, and outside of the products each rank has its part of the positions."""
    part, whole = Shard(1), Replicate()
    return {
        "norm1": SequenceParallel(),
        "norm2": SequenceParallel(),
        "attention": PrepareModuleInput(input_layouts=part, desired_input_layouts=whole),
        **{f"attention.{name}": ColwiseParallel() for name in "qkv"},
        "attention.o": RowwiseParallel(output_layouts=part),
        "ffn": PrepareModuleInput(input_layouts=part, desired_input_layouts=whole),
        "ffn.up": ColwiseParallel(),
        "ffn.down": RowwiseParallel(output_layouts=part),
    }


def within_layers(w: Worker, mesh: DeviceMesh, way: str, reference: dict[str, torch.Tensor]) -> None:
    """One step with the layers split over the ranks."""
    x, target = data(w.device)
    model = build(w.device)
    for block in model:
        plan = sequence_parallel() if way == "sequence" else tensor_parallel()
        if way == "tensor, inputs apart":
            del plan["attention"]
        parallelize_module(block, mesh, plan)
    if way == "sequence":  # each rank starts from, and ends with, its part of the positions
        x, target = (whole.chunk(w.ranks, dim=1)[w.rank].contiguous() for whole in (x, target))
    share = w.ranks if way == "sequence" else 1
    with saved_tensors(exclude=[*model.parameters(), target]) as saved:
        loss = F.mse_loss(model(x), target) / share
    with Communication() as forward:
        F.mse_loss(model(x), target)
    with Communication() as both:
        (F.mse_loss(model(x), target) / share).backward()
    mean = loss.detach().clone()
    if way == "sequence":
        dist.all_reduce(mean)
    w.report(
        of=way,
        loss=mean.item(),
        error=error(model, reference),
        weights=sum(local(weight).nbytes for weight in model.parameters()),
        saved=saved.bytes,
        forward=forward.calls,
        step=both.calls,
        sent=both.sent,
    )


def between_layers(w: Worker, schedule: type, reference: dict[str, torch.Tensor]) -> None:
    """One step with consecutive blocks on each rank, through which micro-batches pass."""
    x, target = data(w.device)
    blocks = BLOCKS // w.ranks
    names = [str(number) for number in range(w.rank * blocks, (w.rank + 1) * blocks)]
    whole = build(w.device)
    mine = nn.Sequential()
    for name in names:
        mine.add_module(name, whole.get_submodule(name))
    stage = PipelineStage(mine, w.rank, w.ranks, w.device)
    run = schedule(stage, n_microbatches=MICRO_BATCHES, loss_fn=F.mse_loss)
    losses: list[torch.Tensor] = []
    with saved_tensors(exclude=[*mine.parameters(), x, target]) as saved:
        if w.rank == 0:
            run.step(x, return_outputs=False)
        elif w.rank == w.ranks - 1:
            run.step(target=target, losses=losses, return_outputs=False)
        else:
            run.step(return_outputs=False)
    w.report(
        of=schedule.__name__.removeprefix("Schedule"),
        loss=torch.stack(losses).mean().item() if losses else None,
        error=error(mine, reference),
        weights=sum(weight.nbytes for weight in mine.parameters()),
        saved=saved.bytes,
    )


def too_few(w: Worker) -> None:
    """Report what 1F1B says to fewer micro-batches than there are stages."""
    stage = PipelineStage(build(w.device)[w.rank], w.rank, w.ranks, w.device)
    said = None
    try:
        Schedule1F1B(stage, n_microbatches=w.ranks - 1, loss_fn=F.mse_loss)
    except ValueError as error:
        said = " ".join(str(error).split())
    w.report(of="1F1B, too few", micro_batches=w.ranks - 1, stages=w.ranks, said=said)


def data(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets, sequences by positions by features."""
    x, target = torch.randn(2, BATCH, SEQUENCE, HIDDEN, generator=torch.Generator().manual_seed(1)).to(device)
    return x.clone(), target.clone()


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor.detach()


def error(model: nn.Module, reference: dict[str, torch.Tensor]) -> float:
    """How far the gradients are from the reference's, in the 2-norm over all of this model's parameters, relative."""
    apart = norm = 0.0
    for name, weight in model.named_parameters():
        gradient = weight.grad.full_tensor() if isinstance(weight.grad, DTensor) else weight.grad
        apart += (gradient - reference[name]).square().sum().item()
        norm += reference[name].square().sum().item()
    return (apart / norm) ** 0.5


def run(w: Worker) -> None:
    """One process alone, then every other way."""
    model, (x, target) = build(w.device), data(w.device)
    with saved_tensors(exclude=[*model.parameters(), target]) as saved:
        loss = F.mse_loss(model(x), target)
    loss.backward()
    reference = {name: weight.grad for name, weight in model.named_parameters()}
    weights = sum(weight.nbytes for weight in model.parameters())
    w.report(of="one process", loss=loss.item(), error=0.0, weights=weights, saved=saved.bytes)

    mesh = init_device_mesh(w.device.type, (w.ranks,))
    for way in ("tensor", "tensor, inputs apart", "sequence"):
        within_layers(w, mesh, way, reference)
    for schedule in (ScheduleGPipe, Schedule1F1B):
        between_layers(w, schedule, reference)
    too_few(w)


def main() -> None:
    with worker() as w:
        run(w)


if __name__ == "__main__":
    main()
