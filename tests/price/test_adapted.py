"""The price of adapters and NF4 weights is the trace, over random recipes and at true sizes."""

import os
import random
from typing import Any

import pytest
from draws import draw_adapted
from kinds import check_kinds

from efficient_training.adapters import LINEARS, Adapter, adapter_bytes, quantized_bytes
from efficient_training.errors import UserError
from efficient_training.models import load_shape
from efficient_training.price import named_sizes, price, words_of
from efficient_training.price.adapters import adapted_sizes
from efficient_training.recipe import Recipe
from efficient_training.trace import trace
from efficient_training.workload import Workload

GROUPS = 20 if os.environ.get("SOAK") else 2
SEEDS = 10 if os.environ.get("SOAK") else 2


@pytest.mark.parametrize("group", range(GROUPS))
def test_the_price_is_the_trace_to_the_byte(group: int) -> None:
    for seed in range(group * SEEDS, (group + 1) * SEEDS):
        workload, recipe = draw_adapted(seed)
        assert price(workload, recipe).entries == trace(workload, recipe).entries, (seed, workload, recipe)


TRUE = [
    ("qwen2.5-0.5b", Recipe(4, "bf16-autocast", adapter="lora")),
    ("qwen2.5-0.5b", Recipe(4, "bf16-autocast", adapter="ia3")),
    ("llama-3.1-8b", Recipe(1, "bf16", adapter="dora", adapter_targets="all-linear")),
    (
        "llama-3.1-8b",
        Recipe(1, "bf16-autocast", "full", adapter="lora", adapter_targets="all-linear", quantization="nf4-double"),
    ),
]


@pytest.mark.parametrize(("model", "recipe"), TRUE, ids=[f"{model}-{recipe.adapter}" for model, recipe in TRUE])
def test_the_price_is_the_trace_at_true_sizes(model: str, recipe: Recipe) -> None:
    workload = Workload(load_shape(model), 2048, 2048 * recipe.micro_batch)
    assert price(workload, recipe).entries == trace(workload, recipe).entries


def test_static_bytes_are_those_that_chapter_10_derives() -> None:
    shape, adapter = load_shape("llama-3.1-8b"), Adapter(rank=16, targets=LINEARS)
    added = adapter_bytes(adapter, shape)
    ledger = price(Workload(shape, 2048, 2048), TRUE[-1][1]).entries["device"]["backward"]
    frequencies = 2 * 4 * shape.head_dim // 2
    assert ledger["weights"] == quantized_bytes(shape).total + added.weights + frequencies
    assert ledger["optimizer state"] == added.state


def test_doras_forward_costs_the_matrices_that_chapter_10_derives() -> None:
    """At its height in the MLP's last layer of i inputs and o outputs: the identity, i x rank, and four or, without a
    cast of the weight, three matrices i x o, all fp32."""
    shape = load_shape("llama-3.1-8b")
    i, o = shape.ffn, shape.hidden
    for precision, matrices in (("bf16", 4), ("fp32", 3)):
        recipe = Recipe(1, precision, loss="chunked", adapter="dora", adapter_targets="all-linear")  # type: ignore[arg-type]
        one, two = (price(Workload(shape, n, n), recipe).entries["device"]["forward"] for n in (32, 64))
        without_tokens = 2 * one["temporaries"] - two["temporaries"]
        assert without_tokens == 4 * (i * i + 16 * i + matrices * i * o)


def test_one_definition_serves_ints_arrays_and_expressions() -> None:
    recipe = TRUE[-1][1]
    words = words_of(load_shape("llama-3.1-8b"), recipe, accumulating=True)

    def row(seed: int) -> dict[str, int]:
        rng = random.Random(seed)
        return {
            "batch": rng.randint(1, 16), "sequence": rng.randint(2, 4096), "hidden": rng.randint(8, 8192),
            "layers": rng.randint(1, 90), "heads": 16, "kv_heads": 4, "head_dim": 2 * rng.randint(4, 64),
            "ffn": rng.randint(8, 30_000), "vocabulary": rng.randint(50, 200_000), "positions": 2048,
            "rank": rng.randint(1, 256),
        }  # fmt: skip

    def sizes(values: dict[str, Any]) -> dict[str, Any]:
        named = {name: value for name, value in values.items() if name != "rank"}
        return adapted_sizes(named_sizes(**named), values["rank"])

    check_kinds(words, [row(seed) for seed in range(8)], sizes)


@pytest.mark.parametrize("view", [price, trace])
@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        (Recipe(1, adapter="lora"), "adapter_targets q-v finds no layers in gpt2.*all-linear"),
        (Recipe(1, adapter="ia3"), "adapter ia3 scales keys and values, for which gpt2 .* no layers .*lora or dora"),
        (
            Recipe(1, adapter="lora", adapter_targets="all-linear", quantization="nf4"),
            "quantization nf4 takes linear layers, which gpt2 .* none of",
        ),
    ],
)
def test_what_a_model_has_no_layers_for_is_refused(view: Any, recipe: Recipe, message: str) -> None:
    with pytest.raises(UserError, match=message):
        view(Workload(load_shape("gpt2"), 64, 64), recipe)
