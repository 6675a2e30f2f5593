"""The loop over several ranks: equal to one process's, and its trace to real processes, to the byte."""

import os
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from draws import draw_offloaded, draw_sharded

from efficient_training.errors import UserError
from efficient_training.measured_ranks import ledgers_on_ranks, losses_on_ranks
from efficient_training.models import ModelShape
from efficient_training.ownership import heaviest_rank, owned_by_rank
from efficient_training.recipe import Recipe
from efficient_training.run import build_trainer
from efficient_training.trace import ledger_of, trace, trace_timeline
from efficient_training.workload import Workload

SOAK = bool(os.environ.get("SOAK"))
QWEN = ModelShape("q2", "qwen2", 64, 5, 4, 2, 16, 176, 301, 512, True)
STATES = ("weights", "optimizer state")


@pytest.mark.parametrize("ranks", [2, 4] if SOAK else [2])
def test_a_trace_is_the_fullest_rank_on_real_processes_to_the_byte(ranks: int) -> None:
    cases = [draw_sharded(seed, deepest=3, small=True, ranks=ranks) for seed in range(500, 560 if SOAK else 512)]
    cases += [draw_offloaded(seed, deepest=3, small=True, ranks=ranks) for seed in range(600, 640 if SOAK else 608)]
    for (workload, recipe), by_rank in zip(cases, ledgers_on_ranks(cases, timeout_s=600), strict=True):
        timeline = trace_timeline(workload.model, workload, recipe, "cpu")
        entries = [ledger.entries for ledger in by_rank]
        fullest = ledger_of(timeline, "run").entries
        assert fullest in entries, (workload, recipe)
        for ledger in by_rank:  # the others hold less, or as much
            for place, phases in ledger.entries.items():
                for phase, components in phases.items():
                    largest = fullest[place][phase]
                    assert all(components.get(name, 0) <= largest.get(name, 0) for name in STATES), (workload, recipe)


@pytest.mark.parametrize("seed", range(2100, 2124 if SOAK else 2103))
def test_a_deep_offloaded_model_follows_from_two_shallow_ones(seed: int) -> None:
    workload, recipe = draw_offloaded(seed, deepest=12)
    full = ledger_of(trace_timeline(workload.model, workload, recipe, "cuda"), "traced")
    assert trace(workload, recipe).entries == full.entries, (workload, recipe)


@pytest.mark.parametrize("seed", range(2000, 2024 if SOAK else 2007))
def test_a_deep_sharded_model_follows_from_two_shallow_ones(seed: int) -> None:
    workload, recipe = draw_sharded(seed, deepest=12)
    full = ledger_of(trace_timeline(workload.model, workload, recipe, "cuda"), "traced")
    assert trace(workload, recipe).entries == full.entries, (workload, recipe)


def test_no_process_group_is_left_behind() -> None:
    trace(Workload(QWEN, 16, 64), Recipe(2, ranks=2, sharding="fsdp"))
    assert not dist.is_initialized()


def test_ranks_without_processes_are_refused() -> None:
    with pytest.raises(UserError, match="the recipe has 2 ranks, the process group has none; launch as many"):
        build_trainer(QWEN, Recipe(2, ranks=2, sharding="fsdp"))
    with pytest.raises(UserError, match="deepspeed-2 has a loop of its own"):
        build_trainer(QWEN, Recipe(2, ranks=2, sharding="deepspeed-2", precision="bf16-mixed"))


def test_a_trace_inside_a_process_group_is_refused() -> None:
    store: Any = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        with pytest.raises(UserError, match="belongs to a process group already"):
            trace(Workload(QWEN, 16, 64), Recipe(2, ranks=2, sharding="fsdp"))
    finally:
        dist.destroy_process_group()


def test_owners_are_those_of_torch() -> None:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    sizes = [40, 7, 7, 100, 3, 3, 3, 64, 12, 100]
    parameters = [torch.nn.Parameter(torch.zeros(size)) for size in sizes]
    store: Any = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        optimizer: Any = ZeroRedundancyOptimizer(parameters, torch.optim.AdamW, lr=1.0)
        optimizer._clear_cache()
        optimizer.world_size = 4
        theirs = [
            [next(n for n, one in enumerate(parameters) if one is parameter) for parameter in groups[0]["params"]]
            for groups in optimizer._partition_parameters()
        ]
    finally:
        dist.destroy_process_group()
    assert owned_by_rank(sizes, 4) == theirs
    assert heaviest_rank(sizes, 4) == max(range(4), key=lambda rank: sum(sizes[one] for one in theirs[rank]))


def test_every_sharding_makes_the_steps_of_one_process() -> None:
    """Losses over five steps: fp32 sums in another order, so equal up to rounding."""
    cases = [
        (Workload(QWEN, 24, 24 * 8), Recipe(2, ranks=2, sharding=sharding))
        for sharding in ("ddp", "zero1", "fsdp", "fsdp-no-reshard")
    ]
    cases.append((cases[0][0], replace(cases[2][1], offload="parameters", offload_activations=True)))
    alone = replace(cases[0][1], ranks=1, sharding="none")
    trainer = _seeded(alone)
    torch.manual_seed(1)
    window = [torch.randint(0, QWEN.vocab, (2, 24)) for _ in range(4)]
    expected = [float(trainer.step(window)) for _ in range(5)]
    for by_rank in losses_on_ranks(cases, window, steps=5):
        for losses in by_rank:
            assert losses == pytest.approx(expected, rel=1e-5)


def _seeded(recipe: Recipe) -> Any:
    torch.manual_seed(0)
    return build_trainer(QWEN, recipe)
