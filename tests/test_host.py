"""Saved tensors in host memory: the same steps, fewer bytes on the device, and a run that is its trace by place."""

import gc
import weakref
from dataclasses import replace

import pytest
import torch
from draws import draw_offloaded
from torch import nn

from efficient_training.host import SavedOnHost
from efficient_training.ledger import Ledger
from efficient_training.measure.memory import MemoryTracker
from efficient_training.models import ModelShape
from efficient_training.plain import build_plain
from efficient_training.recipe import Recipe
from efficient_training.run import Trainer, build_trainer
from efficient_training.trace import ledger_of, trace_timeline, track_step
from efficient_training.workload import Workload

QWEN = ModelShape("q2", "qwen2", 64, 3, 4, 2, 16, 176, 301, 512, True)
AWAY = Recipe(2, offload_activations=True)


def _window(workload: Workload, recipe: Recipe) -> list[torch.Tensor]:
    size = (recipe.micro_batch, workload.sequence_length)
    steps = workload.sequences_per_step // recipe.micro_batch
    return [torch.randint(0, workload.model.vocab, size) for _ in range(steps)]


def _run(workload: Workload, recipe: Recipe) -> Ledger:
    torch.manual_seed(0)
    trainer = build_trainer(workload.model, recipe)
    return ledger_of(track_step(trainer, _window(workload, recipe), workload.model.vocab), "run")


@pytest.mark.parametrize("seed", range(1000, 1024, 2))
def test_a_trace_is_the_run_to_the_byte_in_each_place(seed: int) -> None:
    workload, recipe = draw_offloaded(seed, deepest=3, small=True)
    timeline = trace_timeline(workload.model, workload, recipe, "cpu")
    made = _run(workload, recipe)
    assert set(made.entries) == {"device", "host"}
    assert ledger_of(timeline, "run").entries == made.entries, (workload, recipe)


@pytest.mark.parametrize("precision", ["fp32", "bf16-autocast", "bf16"])
@pytest.mark.parametrize("build", [build_trainer, build_plain])
def test_the_steps_are_those_without_offload_to_the_bit(precision: str, build: object) -> None:
    def losses(recipe: Recipe) -> list[float]:
        torch.manual_seed(0)
        trainer: Trainer = build(QWEN, recipe)  # type: ignore[operator]
        window = _window(Workload(QWEN, 24, 24 * 4), recipe)
        return [float(trainer.step(window)) for _ in range(3)]

    away = replace(AWAY, precision=precision)  # type: ignore[arg-type]
    assert losses(away) == losses(replace(away, offload_activations=False))


def test_what_is_saved_waits_on_the_host_and_the_weights_do_not() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 8))
    x = torch.randn(5, 16)
    with MemoryTracker(model, components={"inputs": [x]}) as tracker:
        with tracker.phase("forward"), SavedOnHost(model.parameters()):
            loss = model(x).sum()
        with tracker.phase("backward"):
            loss.backward()
    saved = 4 * 5 * (16 + 32 + 32)  # x; tanh's result, for itself and for the next layer
    assert tracker.phases["forward"].end.host == {"activations": saved}
    assert tracker.phases["forward"].end.components["activations"] == 4  # the loss
    assert tracker.phases["backward"].end.host == {}


def test_weights_that_come_later_are_kept_too() -> None:
    first, later = (nn.Parameter(torch.ones(3)) for _ in range(2))
    hooks = SavedOnHost([first])
    x = torch.ones(3, requires_grad=True)
    with MemoryTracker() as tracker:
        for number in range(2):
            with tracker.phase(f"forward {number}"), hooks:
                loss = (x * first * later).sum()
            hooks.keep([later])
            del loss
    # x, and the product of x and the first; and the second weight as long as nobody knows it for one.
    assert [tracker.phases[f"forward {number}"].end.host_bytes for number in range(2)] == [3 * 12, 2 * 12]


def test_copies_on_the_host_go_with_the_graph() -> None:
    x = torch.ones(4, requires_grad=True)
    kept: list[weakref.ref[torch.UntypedStorage]] = []

    class Watching(SavedOnHost):
        def _pack(self, tensor: torch.Tensor) -> tuple[torch.device, torch.Tensor] | torch.Tensor:
            packed = super()._pack(tensor)
            assert isinstance(packed, tuple)
            kept.append(weakref.ref(packed[1].untyped_storage()))
            return packed

    with Watching():
        loss = x.exp().sum()
    assert kept[0]() is not None
    loss.backward()
    gc.collect()
    assert kept[0]() is None
    assert x.grad is not None
    torch.testing.assert_close(x.grad, x.detach().exp())
