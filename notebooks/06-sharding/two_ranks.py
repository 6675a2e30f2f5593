"""`tokens.py`, `parallel.py` and `switch.py` with each YAML file, on the same ranks one after the other.

By hand: torchrun --standalone --nproc-per-node 2 two_ranks.py

Each of them runs alone too. Together they save most of their time, which goes into importing the libraries.
"""

import os
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from unittest import mock

from efficient_training.launch.worker import Worker, worker

import parallel
import switch
import tokens
import torch
from accelerate import Accelerator
from accelerate.commands import launch as accelerate_launch
from accelerate.state import AcceleratorState
from accelerate_on_cpu import allow_cpu
from model import build, make_optimizer

HERE = Path(__file__).parent


def under_accelerate(config: Path, function: Callable[[], None]) -> None:
    """`accelerate launch --config_file config`, up to where it would start processes: there, call `function` instead."""
    command = accelerate_launch.launch_command_parser().parse_args(
        ["--config_file", str(config), "--main_process_port", "0", "script.py"]
    )
    with mock.patch("torch.distributed.run.run", side_effect=lambda arguments: function()):
        accelerate_launch.launch_command(command)
    AcceleratorState._reset_state(reset_partial_state=True)


def fallback(w: Worker) -> None:
    """Report what accelerate makes of being asked for FSDP2 on CPUs, as it comes, told of the CPUs or not."""
    for told in ("false", "true"):
        os.environ["ACCELERATE_USE_CPU"] = told
        accelerator = Accelerator()
        w.report(of="fallback", told=told, type=accelerator.distributed_type.value, processes=accelerator.num_processes)
        AcceleratorState._reset_state(reset_partial_state=True)


def masters(w: Worker) -> None:
    """Report in which dtype accelerate trains the weights of a model that was loaded in bf16."""
    allow_cpu(w.device)
    accelerator = Accelerator()
    model = build({"width": 64, "blocks": 1, "vocabulary": 257}).to(torch.bfloat16)
    model, _ = accelerator.prepare(model, make_optimizer(model.parameters()))
    w.report(of="masters by accelerate", mixed=accelerator.mixed_precision, dtype=str(next(model.parameters()).dtype))


def variant(config: Path, folder: Path, key: str, line: str = "") -> Path:
    """A copy of a configuration with `line` in place of that of a key, or without it."""
    lines = [line if old.strip().startswith(f"{key}:") else old for old in config.read_text().splitlines()]
    copy = folder / config.name
    copy.write_text("\n".join(lines))
    return copy


def run(w: Worker) -> None:
    """All of them."""
    tokens.run(w, [120, 8])
    tokens.run(w, [120, 0])
    parallel.run(w)
    if not torch.cuda.is_available():
        under_accelerate(HERE / "fsdp2.yaml", partial(fallback, w))
    for name in ("ddp", "fsdp2", "zero2", "zero3"):
        under_accelerate(HERE / f"{name}.yaml", partial(switch.run, w, name))
    by_sgd = partial(switch.run, w, "zero2", partial(torch.optim.SGD, lr=1.0))
    under_accelerate(HERE / "zero2.yaml", by_sgd)
    under_accelerate(HERE / "fsdp2.yaml", partial(masters, w))
    with tempfile.TemporaryDirectory() as folder:
        under_accelerate(variant(HERE / "zero2.yaml", Path(folder), "gradient_clipping"), by_sgd)
        in_bf16 = variant(HERE / "fsdp2.yaml", Path(folder), "mixed_precision", "mixed_precision: bf16")
        under_accelerate(in_bf16, partial(masters, w))


if __name__ == "__main__":
    with worker() as w:
        run(w)
