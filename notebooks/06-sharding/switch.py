"""One training script for four strategies; which one it is, a YAML file says.

By hand: accelerate launch --config_file fsdp2.yaml switch.py fsdp2

The argument is what the caller expects. The script looks at what it really got, and ends with an error if that is
something else: asked for what it cannot do, accelerate does something less without saying so.
"""

import argparse
from typing import Any

from efficient_training.errors import UserError
from efficient_training.launch.worker import Worker, worker
from efficient_training.sharding.strategies import MakeOptimizer

import torch
from accelerate import Accelerator
from accelerate_on_cpu import allow_cpu
from model import build, loss_of, make_optimizer
from torch.utils.data import DataLoader

WIDTH, VOCABULARY, STEPS = 256, 257, 5
SEQUENCES = 8  # of a step, over all ranks
SMALL = 100_000  # numbers: up to here DeepSpeed leaves a parameter whole, where its settings do not say otherwise


def run(w: Worker, expect: str, make_optimizer: MakeOptimizer = make_optimizer) -> None:
    """Train for some steps with whatever accelerate was told, then look at what that was."""
    allow_cpu(w.device)
    accelerator = Accelerator()
    model = build({"width": WIDTH, "blocks": 4, "vocabulary": VOCABULARY})
    optimizer = make_optimizer(model.parameters())
    small = sum(weight.nbytes for weight in model.parameters() if weight.numel() <= SMALL)
    whole = sum(weight.nbytes for weight in model.parameters())
    text = torch.randint(VOCABULARY, (STEPS * SEQUENCES, 33), generator=torch.Generator().manual_seed(1))
    data = DataLoader(text, batch_size=SEQUENCES // w.ranks)  # of which accelerate gives each rank its part
    model, optimizer, data = accelerator.prepare(model, optimizer, data)

    losses = []
    for tokens in data:
        loss = loss_of(model, tokens[:, :-1], tokens[:, 1:])
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(accelerator.reduce(loss.detach(), "mean").item())

    found = strategy(accelerator, model)
    if found != expect or accelerator.num_processes != w.ranks:
        raise UserError(
            f"asked for {expect} on {w.ranks} processes, got {found} on {accelerator.num_processes}; "
            "compare the YAML file with what this accelerate can do on this machine"
        )
    clipping = model.gradient_clipping() if found.startswith("zero") else 0.0
    w.report(of=found, losses=losses, clipping=clipping, whole=whole, small=small, **bytes_here(model, optimizer))


def strategy(accelerator: Accelerator, model: Any) -> str:
    """What was really set up, read from the objects that `prepare` returned."""
    kind = type(model).__name__
    if kind == "DistributedDataParallel":
        return "ddp"
    if kind == "DeepSpeedEngine":
        return f"zero{model.zero_optimization_stage()}"
    return "fsdp2" if kind.startswith("FSDP") and accelerator.is_fsdp2 else f"no strategy ({kind})"


def bytes_here(model: Any, optimizer: Any) -> dict[str, int]:
    """Bytes of weights and of Adam's moments that this rank keeps between steps."""
    if hasattr(model, "zero_optimization_stage"):
        optimizer = model.optimizer.optimizer
    # Under ZeRO-3 a parameter itself is empty between steps, unless it is so small that DeepSpeed leaves it whole.
    shards = [weight.ds_tensor for weight in model.parameters() if hasattr(weight, "ds_tensor")]
    weights = [*model.parameters(), *shards]
    moments = [entry[name] for entry in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq") if name in entry]
    return {"weights": sum(map(local_bytes, weights)), "moments": sum(map(local_bytes, moments))}


def local_bytes(tensor: torch.Tensor) -> int:
    """Bytes of this rank's part of a tensor."""
    return (tensor.to_local() if hasattr(tensor, "to_local") else tensor).nbytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("expect", choices=["ddp", "fsdp2", "zero2", "zero3"])
    arguments = parser.parse_args()
    with worker() as w:
        run(w, arguments.expect)


if __name__ == "__main__":
    main()
