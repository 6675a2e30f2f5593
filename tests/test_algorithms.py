"""Every optimizer as a field of a recipe: it trains, and its trace is the run to the byte."""

import os
import sys
import warnings
from typing import Any, get_args

import pytest
import torch
import torch._dynamo.utils
from draws import draw_algorithm

from efficient_training.errors import UserError
from efficient_training.measure.memory import MemoryTracker
from efficient_training.models import ModelShape
from efficient_training.optimizers import InBackward
from efficient_training.recipe import Algorithm, Recipe
from efficient_training.run import build_trainer, random_window
from efficient_training.trace import ledger_of, trace_timeline, track_step
from efficient_training.workload import Workload

WORDS = get_args(Algorithm)
SHAPE = ModelShape("small", "qwen2", 64, 2, 4, 2, 16, 176, 503, 1024, True)
SOAK = bool(os.environ.get("SOAK"))


@pytest.fixture(autouse=True)
def _paged_on_a_cpu() -> Any:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Paged optimizers are not supported on CPU")
        yield


@pytest.mark.parametrize("group", range(8 if SOAK else 1))
def test_a_trace_is_the_run_on_real_tensors_to_the_byte(group: int) -> None:
    for seed in range(group * 10, group * 10 + 10):
        workload, recipe = draw_algorithm(seed, deepest=2, small=True)
        timeline = trace_timeline(workload.model, workload, recipe, "cpu")
        torch.manual_seed(0)
        run = track_step(build_trainer(workload.model, recipe), random_window(workload, recipe), workload.model.vocab)
        assert ledger_of(timeline, "run").entries == ledger_of(run, "run").entries, (seed, workload, recipe)


@pytest.mark.parametrize("word", WORDS)
def test_the_loss_falls_and_the_step_in_backward_is_the_same(word: Algorithm) -> None:
    losses = []
    for in_backward in (False, True):
        torch.manual_seed(0)
        recipe = Recipe(2, algorithm=word, step_in_backward=in_backward)
        trainer = build_trainer(SHAPE, recipe)
        for optimizer in trainer.optimizer.optimizers.values() if in_backward else [trainer.optimizer]:  # type: ignore[attr-defined]
            for part in getattr(optimizer, "parts", [optimizer]):
                for group in part.param_groups:
                    group["lr"] = torch.full_like(group["lr"], 3e-3) if torch.is_tensor(group["lr"]) else 3e-3
        window = random_window(Workload(SHAPE, 16, 32), recipe)
        losses.append([trainer.step(window).item() for _ in range(6)])
    assert losses[0][-1] < losses[0][0] - 0.1
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


def test_torchao_is_not_compiled_unless_the_recipe_compiles() -> None:
    counted = torch._dynamo.utils.counters["stats"]
    before = counted["unique_graphs"]
    build_trainer(SHAPE, recipe := Recipe(1, algorithm="torchao-adamw8bit")).step(
        random_window(Workload(SHAPE, 8, 8), recipe)
    )
    assert counted["unique_graphs"] == before


def test_a_trace_leaves_the_libraries_as_they_were() -> None:
    import bitsandbytes.functional
    from torchao.optim import subclass_8bit

    workload = Workload(SHAPE, 8, 8)
    original = bitsandbytes.functional.create_dynamic_map
    words: tuple[Algorithm, ...] = ("bnb-adamw8bit", "torchao-adamw8bit")
    for word in words:
        trace_timeline(SHAPE, workload, Recipe(1, algorithm=word), "cpu")
    assert bitsandbytes.functional.create_dynamic_map is original
    assert subclass_8bit.get_qmap_signed() == tuple(original().tolist())


def test_gradients_that_an_optimizer_frees_in_backward_are_gradients() -> None:
    net = torch.nn.Linear(64, 64, bias=False)
    optimizer: Any = InBackward("adamw", dict(net.named_parameters()), 1e-3)
    with MemoryTracker(net, optimizer) as tracker, tracker.phase("backward"):
        net(torch.ones(2, 64)).sum().backward()
    assert tracker.peak.components["gradients"] == net.weight.nbytes
    assert net.weight.grad is None
    assert len(net.weight._post_accumulate_grad_hooks) == 1


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(UserError, match="needs bitsandbytes, which is not installed"):
        build_trainer(SHAPE, Recipe(1, algorithm="bnb-adamw8bit"))
