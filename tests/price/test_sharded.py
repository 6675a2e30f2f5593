"""The price of a recipe over several ranks is its trace, to the byte, over random models and recipes."""

import os
import random
from typing import Any

import pytest
from draws import draw_sharded
from kinds import check_kinds

from efficient_training.models import load_shape
from efficient_training.price import named_sizes, price, words_of
from efficient_training.price.deepspeed import deepspeed_sizes
from efficient_training.price.parameters import owned_evenly, owned_sizes, parts_of
from efficient_training.price.sizes import sharded_sizes, sizes_of
from efficient_training.price.words import Words
from efficient_training.recipe import Recipe
from efficient_training.trace import trace

GROUP = 6
GROUPS = 30 if os.environ.get("SOAK") else 5


@pytest.mark.parametrize("group", range(GROUPS))
def test_the_price_is_the_trace_to_the_byte(group: int) -> None:
    for seed in range(group * GROUP, (group + 1) * GROUP):
        workload, recipe = draw_sharded(seed)
        traced, priced = trace(workload, recipe), price(workload, recipe)
        assert priced.entries == traced.entries, (seed, workload, recipe)


def _sizes(words: Words, row: dict[str, Any]) -> dict[str, Any]:
    """The named sizes of a model on several ranks, of ints, arrays or expressions."""
    model = dict(named_sizes(**{name: value for name, value in row.items() if name != "ranks"}))
    if words.fsdp:
        return sharded_sizes(model, row["ranks"])
    if words.deepspeed:
        return deepspeed_sizes(model, parts_of(words, model, row["ranks"]), int(words.sharding[-1]), row["ranks"])
    return {**model, **owned_evenly(words, model, row["ranks"])}


def _row(seed: int) -> dict[str, int]:
    rng = random.Random(seed)
    return {
        "batch": rng.randint(1, 8), "sequence": rng.randint(1, 4096), "hidden": rng.randint(8, 8192),
        "layers": rng.randint(1, 90), "heads": 16, "kv_heads": 4, "head_dim": 2 * rng.randint(4, 64),
        "ffn": rng.randint(8, 30_000), "vocabulary": rng.randint(50, 200_000), "positions": 2048,
        "checkpoint_every": rng.randint(1, 9), "ranks": rng.randint(2, 512),
    }  # fmt: skip


@pytest.mark.parametrize("sharding", ["fsdp", "zero1", "deepspeed-3"])
def test_one_definition_serves_ints_arrays_and_expressions(sharding: str) -> None:
    precision: Any = "fp32" if sharding == "zero1" else "bf16-mixed"
    recipe = Recipe(2, precision, "full", sharding=sharding, ranks=2)  # type: ignore[arg-type]
    words = words_of(load_shape("llama-3.1-8b"), recipe, accumulating=False)
    rows = [_row(seed) for seed in range(20)]
    check_kinds(words, rows, lambda row: _sizes(words, row))


def test_an_even_share_is_near_what_the_fullest_rank_owns() -> None:
    shape = load_shape("llama-3.1-8b")
    recipe = Recipe(1, "bf16", sharding="zero1", ranks=8)
    words = words_of(shape, recipe, accumulating=False)
    exact, even = owned_sizes(shape, 8), owned_evenly(words, sizes_of(shape), 8)
    assert even["owned"] <= exact["owned"] < even["owned"] + shape.vocab * shape.hidden
