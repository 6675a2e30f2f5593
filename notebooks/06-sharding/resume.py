"""Train under FSDP2 with sharded checkpoints: stop anywhere, go on with any number of ranks.

By hand: torchrun --standalone --nproc-per-node 4 resume.py --folder checkpoints --steps 9 --save-every 5
and then: torchrun --standalone --nproc-per-node 2 resume.py --folder checkpoints --steps 9
"""

import argparse
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from efficient_training.errors import UserError
from efficient_training.launch.worker import Worker, worker

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from model import build, loss_of, make_optimizer, own
from torch import nn
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.optim import Optimizer

VOCABULARY, SEQUENCES, LENGTH = 257, 8, 32  # entries; sequences of a step, over all ranks; tokens of each


def sharded(width: int, device: torch.device) -> tuple[nn.Module, Optimizer]:
    """The chapter's model under FSDP2, over all ranks, and its optimizer."""
    model = build({"width": width, "blocks": 4, "vocabulary": VOCABULARY}, device)
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model, make_optimizer(model.parameters())


def batch(step: int) -> torch.Tensor:
    """A step's sequences. They depend on the step alone, so that any number of ranks sees the same."""
    tokens = [torch.randint(VOCABULARY, (SEQUENCES,), generator=torch.Generator().manual_seed(step))]
    for _ in range(LENGTH):
        tokens.append((5 * tokens[-1] + 7) % VOCABULARY)  # a rule that can be learned
    return torch.stack(tokens, dim=1)


def state(model: nn.Module, optimizer: Optimizer, step: int) -> dict[str, Any]:
    """All that a step depends on: weights, moments, and the step, from which data follow. Each rank has its shards."""
    weights, moments = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer": moments, "step": torch.tensor(step)}


def save(
    folder: Path,
    step: int,
    model: nn.Module,
    optimizer: Optimizer,
    writer: Callable = dcp.FileSystemWriter,
) -> Path:
    """Write under another name, then rename: it is there as a whole, or it is not there."""
    partial, final = folder / f"step-{step:06d}.partial", folder / f"step-{step:06d}"
    # Returns when all ranks have written.
    dcp.save(state(model, optimizer, step), storage_writer=writer(partial))
    if dist.get_rank() == 0:
        partial.rename(final)
    dist.barrier()
    return final


def newest(folder: Path) -> Path | None:
    """The last checkpoint that is whole."""
    whole = [path for path in folder.glob("step-*") if path.suffix != ".partial"]
    return max(whole, default=None)


def load(checkpoint: Path, model: nn.Module, optimizer: Optimizer) -> int:
    """Fill model and optimizer, each rank reading what it needs. Returns the step."""
    loaded = state(model, optimizer, 0)
    try:
        dcp.load(loaded, checkpoint_id=checkpoint)
    except dcp.api.CheckpointException as error:  # which is no `Exception`
        cause = next(iter(error.failures.values()))[0]
        raise UserError(
            f"cannot resume from {checkpoint}, which is damaged or of another model "
            f"({type(cause).__name__}: {cause}); remove it, and the one before is used"
        ) from None
    weights, moments = loaded["model"], loaded["optimizer"]
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
    return int(loaded["step"])


def sizes(checkpoint: Path) -> dict[str, int]:
    """Bytes of the tensors in a checkpoint, by its own index; bytes of its files; pieces that the tensors are cut into."""
    entries = dcp.FileSystemReader(checkpoint).read_metadata().state_dict_metadata.values()
    tensors = [entry for entry in entries if isinstance(entry, TensorStorageMetadata)]
    pieces = [(chunk.sizes.numel(), tensor.properties.dtype) for tensor in tensors for chunk in tensor.chunks]
    return {
        "tensors": sum(numbers * dtype.itemsize for numbers, dtype in pieces),
        "files": sum(path.stat().st_size for path in checkpoint.glob("*.distcp")),
        "pieces": len(pieces),
    }


def train(
    w: Worker,
    folder: Path,
    steps: int,
    save_every: int,
    width: int = 128,
    save: Callable = save,
    after_backward: Callable[[int], None] = lambda step: None,
) -> None:
    """Resume from the newest checkpoint, or start; report each step's loss."""
    model, optimizer = sharded(width, w.device)
    checkpoint = newest(folder)
    begin = load(checkpoint, model, optimizer) if checkpoint else 0
    dist.barrier()  # all have looked, before one removes what a run that died while saving has left
    if w.rank == 0:
        left = list(folder.glob("step-*.partial"))
        counts = {
            "parameters": sum(weight.numel() for weight in model.parameters()),
            "parts": len(list(model.parameters())),
        }
        w.report(resumed_at=begin, left=len(left), **counts)
        for path in left:
            shutil.rmtree(path)
    dist.barrier()
    for step in range(begin + 1, steps + 1):
        tokens = own(batch(step), w)
        loss = loss_of(model, tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        after_backward(step)
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach() / w.ranks
        dist.all_reduce(mean)
        if w.rank == 0:
            w.report(step=step, loss=mean.item())
        if save_every and step % save_every == 0 and step < steps:
            saved = save(folder, step, model, optimizer)
            if w.rank == 0:
                w.report(saved_at=step, **sizes(saved))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=9)
    parser.add_argument("--save-every", type=int, default=0, help="0: never")
    parser.add_argument("--width", type=int, default=128)
    arguments = parser.parse_args()
    with worker() as w:
        train(w, arguments.folder, arguments.steps, arguments.save_every, arguments.width)


if __name__ == "__main__":
    main()
