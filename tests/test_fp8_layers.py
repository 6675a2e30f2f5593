"""Linear layers in fp8 as a recipe asks for them: they train, a run is its trace, and what cannot be is refused."""

import os
from dataclasses import replace

import pytest
import torch
from draws import draw_fp8
from torch import nn
from torchao.float8.float8_linear import Float8Linear

from efficient_training.errors import UserError
from efficient_training.fp8_layers import convert
from efficient_training.measure.memory import MemoryTracker
from efficient_training.measured import run_timeline
from efficient_training.models import ModelShape, load_shape
from efficient_training.price import price
from efficient_training.recipe import Recipe, accumulation_steps
from efficient_training.run import build_model, build_trainer, random_window
from efficient_training.trace import ledger_of, trace, trace_timeline
from efficient_training.workload import Workload

QWEN = ModelShape("q2", "qwen2", 64, 2, 4, 2, 16, 176, 300, 512, True)
FP8 = Recipe(2, "bf16", fp8="tensorwise")
SOAK = bool(os.environ.get("SOAK"))


@pytest.mark.parametrize("seed", range(40 if SOAK else 5))
def test_a_trace_is_the_run_on_real_tensors_to_the_byte(seed: int) -> None:
    workload, recipe = draw_fp8(seed, deepest=2, small=True)
    traced = ledger_of(trace_timeline(workload.model, workload, recipe, "cpu"), "run")
    assert traced.entries == ledger_of(run_timeline(workload, recipe), "run").entries, (workload, recipe)


def test_the_tracker_sees_into_a_product_of_tensors_in_fp8() -> None:
    """torchao multiplies by a tensor in fp32 that is as large as the result, where scales are by row."""
    model = build_model(QWEN, replace(FP8, fp8="rowwise"))
    layer = next(module for module in model.modules() if isinstance(module, Float8Linear))
    x = torch.randn(4096, 64, dtype=torch.bfloat16, requires_grad=True)
    with MemoryTracker() as tracker, tracker.phase("backward"):
        layer(x).sum().backward()
    multiplied = [one for one in tracker.timeline if one.operator == "aten::mul_.Tensor"]
    samples = {one.step: one.bytes for one in tracker.timeline}
    assert [one.operator for one in tracker.timeline].count("aten::_scaled_mm") == 3
    assert len(multiplied) == 2
    # Once the product is done, its fp32 factor goes, as do copies and scales.
    assert samples[multiplied[0].step] - samples[multiplied[0].step + 1] > 4 * x.numel()


@pytest.mark.parametrize("fp8", ["tensorwise", "rowwise", "rowwise-gw-hp"])
@pytest.mark.parametrize("precision", ["bf16", "bf16-autocast"])
def test_it_trains_as_bf16_does_and_the_head_is_left_out(fp8: str, precision: str) -> None:
    losses = {}
    for one in ("none", fp8):
        torch.manual_seed(0)
        made = build_trainer(QWEN, Recipe(2, precision, fp8=one))  # type: ignore[arg-type]
        made.optimizer.param_groups[0]["lr"] = 1e-2
        window = random_window(Workload(QWEN, 24, 48), made.recipe)
        losses[one] = [float(made.step(window)) for _ in range(6)]
        names = {name for name, module in made.model.named_modules() if isinstance(module, Float8Linear)}
        assert len(names) == (0 if one == "none" else 7 * QWEN.layers)
        assert not any("head" in name for name in names)
    assert losses[fp8][-1] < 0.8 * losses[fp8][0]
    assert losses[fp8] != losses["none"]
    assert losses[fp8] == pytest.approx(losses["none"], rel=0.05)


@pytest.mark.parametrize("checkpointing", ["full", "selective", "selective-half"])
def test_checkpointing_changes_no_loss(checkpointing: str) -> None:
    def losses(recipe: Recipe) -> list[float]:
        torch.manual_seed(0)
        made = build_trainer(QWEN, recipe)
        window = random_window(Workload(QWEN, 24, 48), recipe)
        return [float(made.step(window)) for _ in range(3)]

    assert losses(replace(FP8, checkpointing=checkpointing)) == losses(FP8)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "sequence", "recipe", "message"),
    [
        ({"hidden": 72}, 16, FP8, "fp8 tensorwise: hidden must be a multiple of 16, got 72"),
        ({"head_dim": 20}, 16, FP8, "kv_heads times head_dim must be a multiple of 16, got 40"),
        ({"ffn": 100}, 16, replace(FP8, fp8="rowwise"), "fp8 rowwise: ffn must be a multiple of 16, got 100"),
        ({}, 17, FP8, "micro_batch times sequence_length must be a multiple of 16, got 34"),
        (
            {"family": "gpt2", "kv_heads": 4},
            16,
            FP8,
            r"takes linear layers, which q2 \(GPT-2\) has none of; set fp8: none",
        ),
    ],
)
def test_sizes_that_cuda_does_not_multiply_are_refused_in_each_view(
    change: dict[str, object], sequence: int, recipe: Recipe, message: str
) -> None:
    shape = replace(QWEN, **change)  # type: ignore[arg-type]
    workload = Workload(shape, sequence, 2 * sequence)
    for view in (price, trace, accumulation_steps):
        with pytest.raises(UserError, match=message) as caught:
            view(workload, recipe)
        assert "\n" not in str(caught.value)
    if change:
        with pytest.raises(UserError, match=message):
            build_model(shape, recipe)
    else:
        assert accumulation_steps(workload, replace(recipe, fp8="rowwise-gw-hp")) == 1


def test_a_device_that_cannot_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    for fp8 in ("tensorwise", "rowwise"):
        with pytest.raises(UserError, match=r"needs compute capability 8.9, found 8.0"):
            convert(nn.Module(), QWEN, replace(FP8, fp8=fp8), "cuda")


def test_without_fp8_nothing_is_converted_and_every_size_goes() -> None:
    workload = Workload(load_shape("gpt2"), 17, 17)
    assert accumulation_steps(workload, Recipe(1)) == 1
