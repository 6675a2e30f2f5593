"""Train one small model with its state in one place after the other; report losses, bytes by place, and times."""

import argparse
import contextlib
import time
from pathlib import Path

from efficient_training import native

native.use()  # before DeepSpeed is imported: where its extensions are, and what to run on
from efficient_training.launch.worker import worker
from efficient_training.offload.held import held
from efficient_training.offload.swap import Swapped, largest_parameter, prepare_folder, swap_plan, watch

import deepspeed
import torch
from torch import nn
from torch.nn import functional as F


def build(width, layers):
    """Square linear layers between a narrow first and a narrow last, with seeded weights."""
    torch.manual_seed(0)
    inner = [part for _ in range(layers) for part in (nn.GELU(), nn.Linear(width, width))]
    return nn.Sequential(nn.Linear(64, width), *inner, nn.GELU(), nn.Linear(width, 64))


def config(offload, model, folder, sub_group, rows):
    """DeepSpeed's configuration for one way to offload."""
    there = {
        "device": "nvme" if offload.endswith("nvme") else "cpu",
        "nvme_path": str(folder),
        "pin_memory": torch.cuda.is_available(),
    }
    zero = {
        "stage": 3,
        "sub_group_size": sub_group,
        "stage3_param_persistence_threshold": 0,
        "stage3_max_live_parameters": 0,  # a weight leaves once it was used
        "stage3_max_reuse_distance": 0,
    }
    if offload != "none":
        zero["offload_optimizer"] = there
    if offload.startswith("parameters"):
        zero["offload_param"] = there
    if offload == "parameters-nvme":
        size = largest_parameter(model)
        zero["offload_param"] = there | {"buffer_size": size, "max_in_cpu": 0}
    adam = {"lr": 1e-3, "torch_adam": offload == "none"}
    return {
        "train_micro_batch_size_per_gpu": rows,
        "bf16": {"enabled": True},
        "zero_optimization": zero,
        "optimizer": {"type": "AdamW", "params": adam},
    }


def batch(engine, rows):
    """The same rows of random numbers at each call, to be learned by heart."""
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(rows, 64, generator=generator).to(engine.device, torch.bfloat16) for _ in range(2)]


def train(engine, rows, steps, look=lambda step: None):
    """Losses and seconds of so many steps; calls `look` between backward and optimizer step."""
    x, y = batch(engine, rows)
    losses, seconds = [], []
    for step in range(steps):
        begin = time.perf_counter()
        loss = F.mse_loss(engine(x).float(), y.float())
        engine.backward(loss)
        look(step)
        engine.step()
        losses.append(loss.item())  # waits for the device
        seconds.append(time.perf_counter() - begin)
    return losses, seconds


def start(offload, folder, arguments):
    """An engine with its state where `offload` says; refuses a folder in which the swap files would not fit."""
    model = build(arguments.width, arguments.layers)
    settings = config(offload, model, folder, arguments.sub_group, arguments.rows)
    sizes = [parameter.numel() for parameter in model.parameters()]
    plan = swap_plan(sizes, arguments.sub_group, parameters=offload == "parameters-nvme")
    prepare_folder(folder, plan.disk_bytes if offload.endswith("nvme") else 0)
    return deepspeed.initialize(model=model, model_parameters=model.parameters(), config=settings)[0]


def run(offload, arguments):
    """One engine, from its making to its end, with what it held before its last optimizer step."""
    folder, on_gpu, seen = arguments.folder / offload, torch.cuda.is_available(), {}

    def look(step):
        if step == arguments.steps - 1:
            seen["held"] = held(engine, offload, folder)

    with watch() if offload.endswith("nvme") else contextlib.nullcontext(Swapped()) as swapped:
        engine = start(offload, folder, arguments)
        if on_gpu:
            torch.cuda.reset_peak_memory_stats()
        losses, seconds = train(engine, arguments.rows, arguments.steps, look)
        seen |= {"losses": losses, "seconds": min(seconds[1:])}
        if on_gpu:
            seen["peak"] = torch.cuda.max_memory_allocated()
        swapped.reset()  # the first step has no moments to read yet
        seen["losses"] += train(engine, arguments.rows, 1)[0]
        seen |= {"read": swapped.read, "written": swapped.written}
        if offload in arguments.save:
            engine.save_checkpoint(arguments.folder / f"checkpoint-{offload}")
            seen["after"] = train(engine, arguments.rows, 2)[0]
        engine.destroy()
    return seen


def arguments():
    """Of the command line; sizes in elements."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("offload", nargs="*")
    parser.add_argument("--save", nargs="*", default=[])
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--sub-group", type=int, default=2**20)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--steps", type=int, default=3)
    return parser.parse_args()


if __name__ == "__main__":
    given = arguments()
    native.load()
    with worker() as this:
        for offload in given.offload:
            this.report(offload=offload, **run(offload, given))
