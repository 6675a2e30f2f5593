"""A recipe's adapter and quantized weights in the training loop: what is built, trains, and is traced."""

import copy
import os
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from draws import draw_adapted
from torch._subclasses.fake_tensor import FakeTensorMode

from efficient_training.adapted import adapter_of
from efficient_training.adapters import build
from efficient_training.errors import UserError
from efficient_training.measured import run_timeline
from efficient_training.models import ModelShape
from efficient_training.quantization import is_quantized, quantized_state
from efficient_training.recipe import Recipe
from efficient_training.run import Trainer, build_model, build_trainer
from efficient_training.trace import ledger_of, trace, trace_timeline, track_step
from efficient_training.workload import Workload

LLAMA = ModelShape("ll", "llama", 64, 2, 4, 2, 16, 144, 200, 512, False)
QWEN = ModelShape("q2", "qwen2", 64, 2, 4, 2, 16, 176, 300, 512, True)
GPT2 = ModelShape("g", "gpt2", 64, 2, 4, 4, 16, 256, 200, 512, True)
LORA = Recipe(2, adapter="lora", adapter_rank=4, adapter_targets="all-linear")
DORA = replace(LORA, adapter="dora")
IA3 = Recipe(2, adapter="ia3")
SOAK = bool(os.environ.get("SOAK"))


@pytest.fixture(autouse=True)
def _eager() -> Iterator[None]:
    with torch.compiler.set_stance("force_eager"):  # bitsandbytes would compile what it runs on a CPU
        yield


def trainer(shape: ModelShape, recipe: Recipe) -> Trainer:
    torch.manual_seed(0)
    return build_trainer(shape, recipe)


def ids(shape: ModelShape, tokens: int = 24) -> torch.Tensor:
    return torch.randint(0, shape.vocab, (2, tokens), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("group", range(8 if SOAK else 2))
def test_a_trace_is_the_run_on_real_tensors_to_the_byte(group: int) -> None:
    for seed in range(3000 + group * 3, 3003 + group * 3):
        workload, recipe = draw_adapted(seed, deepest=3, small=True)
        made = trainer(workload.model, recipe)
        size = (recipe.micro_batch, workload.sequence_length)
        steps = workload.sequences_per_step // recipe.micro_batch
        window = [torch.randint(0, workload.model.vocab, size) for _ in range(steps)]
        run = ledger_of(track_step(made, window, workload.model.vocab), "run")
        traced = ledger_of(trace_timeline(workload.model, workload, recipe, "cpu"), "run")
        assert traced.entries == run.entries, (seed, workload, recipe)


def test_a_deep_model_follows_from_two_shallow_ones() -> None:
    for seed in range(4000, 4012 if SOAK else 4001):
        workload, recipe = draw_adapted(seed, deepest=14)
        deep = replace(workload, model=replace(workload.model, layers=14))
        full = ledger_of(trace_timeline(deep.model, deep, recipe, "cuda"), "traced")
        assert trace(deep, recipe).entries == full.entries, (seed, deep, recipe)


@pytest.mark.parametrize(
    ("shape", "recipe", "quantization"),
    [
        (LLAMA, LORA, "none"), (LLAMA, LORA, "nf4"), (QWEN, LORA, "none"), (QWEN, LORA, "nf4-double"),
        (GPT2, LORA, "none"), (QWEN, DORA, "none"), (QWEN, DORA, "nf4-double"), (GPT2, DORA, "none"),
        (QWEN, IA3, "none"), (QWEN, IA3, "nf4"),
    ],
    ids=lambda one: getattr(one, "name", getattr(one, "adapter", one)),
)  # fmt: skip
@pytest.mark.parametrize("precision", ["fp32", "bf16-autocast", "bf16"])
def test_it_trains_the_adapter_alone(shape: ModelShape, recipe: Recipe, quantization: Any, precision: Any) -> None:
    if recipe is IA3 and quantization != "none" and precision == "bf16":
        with pytest.raises(UserError, match="needs another precision than bf16"):
            replace(recipe, precision=precision, quantization=quantization)
        return
    made = trainer(shape, replace(recipe, precision=precision, quantization=quantization, checkpointing="full"))
    made.optimizer.param_groups[0]["lr"] = 1e-2
    before = {name: p.detach().clone() for name, p in made.model.named_parameters()}
    losses = [float(made.step([ids(shape)])) for _ in range(5)]
    assert losses[-1] < losses[0]
    for name, parameter in made.model.named_parameters():
        assert parameter.requires_grad == ("lora_" in name or "ia3_" in name)
        assert parameter.requires_grad != torch.equal(parameter, before[name]), name
    assert {p.dtype for p in made.model.parameters() if p.requires_grad} == {torch.float32}
    assert bool(quantized_state(made.model)) == (quantization != "none")


@pytest.mark.parametrize("adapter", ["lora", "dora", "ia3"])
def test_it_is_what_peft_builds_on_the_same_weights(adapter: Any) -> None:
    """DoRA's magnitude too, which begins as the norm of the weight."""
    recipe = IA3 if adapter == "ia3" else replace(LORA, adapter=adapter)
    ours = trainer(LLAMA, recipe).model
    plain = build_model(LLAMA, Recipe(2))
    weights = {name.replace("base_layer.", ""): tensor for name, tensor in ours.state_dict().items()}
    plain.load_state_dict({name: weights[name] for name in plain.state_dict()})
    theirs = build(plain, adapter_of(LLAMA, recipe)).get_base_model()
    assert [(n, p.shape, p.requires_grad) for n, p in ours.named_parameters()] == [
        (n, p.shape, p.requires_grad) for n, p in theirs.named_parameters()
    ]
    beginning = dict(theirs.named_parameters())
    for name, parameter in ours.named_parameters():
        if "lora_A" not in name:  # which is random
            torch.testing.assert_close(parameter, beginning[name])


@pytest.mark.parametrize("loss", ["upcast", "native", "chunked"])
def test_the_loss_and_gradients_are_those_of_transformers_and_peft(loss: Any) -> None:
    """In NF4 too: the model that the loop sees is the one that peft made."""
    made = trainer(LLAMA, replace(LORA, quantization="nf4-double", loss=loss))
    window = ids(LLAMA)
    theirs = made.model(input_ids=window, labels=window).loss
    theirs.backward()
    expected = {name: p.grad for name, p in made.model.named_parameters() if p.grad is not None}
    made.optimizer.zero_grad()
    seen: dict[str, Any] = {}
    made.optimizer.register_step_pre_hook(
        lambda *_: seen.update({name: p.grad for name, p in made.model.named_parameters() if p.grad is not None})
    )
    torch.testing.assert_close(made.step([window]), theirs.detach())
    assert expected.keys() == seen.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(seen[name], gradient)


@pytest.mark.parametrize("checkpointing", ["full", "selective", "selective-half"])
@pytest.mark.parametrize(
    "recipe",
    [LORA, replace(LORA, quantization="nf4"), DORA, replace(DORA, quantization="nf4"), IA3],
    ids=lambda recipe: f"{recipe.adapter}-{recipe.quantization}",
)
def test_checkpointing_changes_no_loss(checkpointing: Any, recipe: Recipe) -> None:
    plain, again = trainer(LLAMA, recipe), trainer(LLAMA, replace(recipe, checkpointing=checkpointing))
    assert [float(again.step([ids(LLAMA)])) for _ in range(3)] == [float(plain.step([ids(LLAMA)])) for _ in range(3)]


def test_what_is_not_quantized_is_as_kbit_preparation_leaves_it() -> None:
    for precision, wanted in (("fp32", torch.float32), ("bf16-autocast", torch.float32), ("bf16", torch.bfloat16)):
        model = trainer(QWEN, replace(LORA, precision=precision, quantization="nf4")).model  # type: ignore[arg-type]
        frozen = {n: p.dtype for n, p in model.named_parameters() if not p.requires_grad}
        assert {dtype for name, dtype in frozen.items() if "norm" in name or "embed" in name} == {wanted}
        assert {dtype for name, dtype in frozen.items() if name.endswith("base_layer.weight")} == {torch.uint8}


def test_doras_matrices_are_really_there() -> None:
    """A forward pass's peak without tokens, which follows from two lengths: the identity, i x rank, three matrices."""
    shape = replace(LLAMA, ffn=512)
    i, o, recipe = shape.ffn, shape.hidden, replace(DORA, micro_batch=1)
    one, two = (
        ledger_of(run_timeline(Workload(shape, n, n), recipe), "run").entries["device"]["forward"] for n in (4, 8)
    )
    assert 2 * one["temporaries"] - two["temporaries"] == 4 * (i * i + 4 * i + 3 * i * o)


def test_a_trace_leaves_no_fake_tensor_behind() -> None:
    import bitsandbytes.functional as bnb

    bnb.name2qmap.pop("dynamic", None)
    trace(Workload(LLAMA, 24, 48), replace(LORA, quantization="nf4-double"))
    assert type(bnb.name2qmap["dynamic"]) is torch.Tensor
    assert float(trainer(LLAMA, replace(LORA, quantization="nf4-double")).step([ids(LLAMA)])) > 0


def test_copying_a_fake_quantized_layer_reads_no_storage() -> None:
    with FakeTensorMode(allow_non_fake_inputs=True), warnings.catch_warnings():
        warnings.simplefilter("error")
        model = build_model(LLAMA, replace(LORA, adapter="dora", quantization="nf4-double"))
        layer = next(module for module in model.modules() if is_quantized(module))
        copied = copy.deepcopy(layer)
    assert copied is not layer
    assert copied.weight is layer.weight
    assert copied.quant_state is layer.quant_state
