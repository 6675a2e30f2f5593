"""How many parameters a second Adam updates on this machine's CPU, by implementation."""

import argparse
import os

from efficient_training import native

native.use()
from efficient_training.launch.worker import worker
from efficient_training.measure.rates import update_rate
from efficient_training.measure.timing import time_steps

import torch
from deepspeed.ops.adam import DeepSpeedCPUAdam


def rate(make, parameters):
    """Parameters per second of the best of five steps."""
    weights = torch.zeros(parameters, requires_grad=True)
    weights.grad = torch.ones(parameters)
    optimizer = make([weights])
    taken = time_steps(lambda _: optimizer.step(), "cpu", steps=5, warmup=2)
    return parameters / min(taken["step"].samples_s)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parameters", type=int, default=2**24)
    given = parser.parse_args()
    native.load()
    with worker() as this:
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
        made = {
            "deepspeed": lambda weights: DeepSpeedCPUAdam(weights),
            "fused": lambda weights: torch.optim.AdamW(weights, fused=True),
            "foreach": lambda weights: torch.optim.AdamW(weights, foreach=True),
            "loop": lambda weights: torch.optim.AdamW(weights, foreach=False),
        }
        rates = {name: rate(make, given.parameters) for name, make in made.items()}
        this.report(memory=update_rate("cpu", size=2**27, steps=5), **rates)
