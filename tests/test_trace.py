"""A trace equals real tensors on the CPU where the same kernels run, and a shallow trace equals a deep one."""

import os

import pytest
import torch
from draws import draw

from efficient_training.ledger import Ledger
from efficient_training.models import ModelShape
from efficient_training.recipe import Recipe
from efficient_training.run import build_trainer
from efficient_training.trace import ledger_of, trace, trace_timeline, track_step
from efficient_training.workload import Workload


def _run(workload: Workload, recipe: Recipe) -> Ledger:
    torch.manual_seed(0)
    trainer = build_trainer(workload.model, recipe)
    size = (recipe.micro_batch, workload.sequence_length)
    steps = workload.sequences_per_step // recipe.micro_batch
    window = [torch.randint(0, workload.model.vocab, size) for _ in range(steps)]
    return ledger_of(track_step(trainer, window, workload.model.vocab), "run")


SOAK = bool(os.environ.get("SOAK"))


@pytest.mark.parametrize("group", range(9 if SOAK else 5))
def test_a_trace_is_the_run_on_real_tensors_to_the_byte(group: int) -> None:
    for seed in range(group * 5, group * 5 + 5):
        workload, recipe = draw(1000 + seed, deepest=3, small=True)
        timeline = trace_timeline(workload.model, workload, recipe, "cpu")
        assert ledger_of(timeline, "run").entries == _run(workload, recipe).entries, (seed, workload, recipe)


@pytest.mark.parametrize("seed", range(2000, 2012 if SOAK else 2006))
def test_a_deep_model_follows_from_two_shallow_ones(seed: int) -> None:
    workload, recipe = draw(seed, deepest=12)
    full = ledger_of(trace_timeline(workload.model, workload, recipe, "cuda"), "traced")
    assert trace(workload, recipe).entries == full.entries, (workload, recipe)


def test_a_scale_that_overflows_is_lowered_before_a_step_is_measured() -> None:
    shape = ModelShape("l", "llama", 64, 2, 4, 2, 16, 128, 320, 512, True)
    recipe = Recipe(1, "fp16-autocast")
    for seed in range(3):
        torch.manual_seed(seed)
        assert _run(Workload(shape, 2, 2), recipe).entries == trace(Workload(shape, 2, 2), recipe, "cpu").entries
