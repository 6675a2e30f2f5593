"""Techniques together, one on the other: the price is the trace, and the trace is what runs."""

import os

import pytest
from draws import draw_combined

from efficient_training.measured import run_timeline
from efficient_training.price import price
from efficient_training.trace import ledger_of, trace

SEEDS = 200 if os.environ.get("SOAK") else 10


@pytest.mark.parametrize("seed", range(SEEDS))
def test_adapters_optimizers_and_packing_are_priced_as_traced(seed: int) -> None:
    workload, recipe = draw_combined(seed, deepest=4)
    assert price(workload, recipe).entries == trace(workload, recipe).entries, (workload, recipe)


@pytest.mark.parametrize("seed", range(SEEDS // 5))
def test_and_run_as_traced(seed: int) -> None:
    workload, recipe = draw_combined(5 * seed, deepest=3)
    run = ledger_of(run_timeline(workload, recipe), "run")
    assert run.entries == trace(workload, recipe, "cpu").entries, (workload, recipe)
