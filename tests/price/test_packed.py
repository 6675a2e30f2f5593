"""The price of packed rows is the trace: over random draws, and at true sizes, where a mask outgrows all else."""

import os
import random
from typing import Any

import pytest
from draws import draw_packed
from kinds import check_kinds

from efficient_training.models import load_shape
from efficient_training.price import named_sizes, price, words_of
from efficient_training.recipe import Packing, Recipe
from efficient_training.trace import trace
from efficient_training.workload import Workload

SOAK = bool(os.environ.get("SOAK"))


@pytest.mark.parametrize("seed", range(100 if SOAK else 8))
def test_the_price_is_the_trace_to_the_byte(seed: int) -> None:
    workload, recipe = draw_packed(seed)
    traced, priced = trace(workload, recipe), price(workload, recipe)
    assert priced.entries == traced.entries, (workload, recipe)


TRUE = [
    ("qwen2.5-0.5b", 8192, Recipe(1, "bf16-autocast", optimizer="fused", packing="mask")),
    ("qwen2.5-0.5b", 32768, Recipe(1, "bf16-autocast", optimizer="fused", packing="varlen")),
    ("llama-3.1-8b", 4096, Recipe(2, "bf16", "full", loss="chunked", packing="varlen")),
    ("llama-3.1-8b", 16384, Recipe(1, "bf16", "full", loss="chunked", packing="mask")),
]


@pytest.mark.parametrize(("model", "tokens", "recipe"), TRUE if SOAK else TRUE[3:])
def test_at_true_sizes_it_is_the_trace_to_the_byte(model: str, tokens: int, recipe: Recipe) -> None:
    workload = Workload(load_shape(model), tokens, tokens * recipe.micro_batch)
    assert price(workload, recipe).entries == trace(workload, recipe).entries


def _extra(tokens: int, packing: Packing) -> int:
    """Bytes of the peak of Qwen2.5-0.5B beyond those of the same row as one document."""
    workload = Workload(load_shape("qwen2.5-0.5b"), tokens, tokens)
    common: dict[str, Any] = {"precision": "bf16-autocast", "optimizer": "fused", "checkpointing": "full"}
    plain, packed = (price(workload, Recipe(1, **common, packing=one)) for one in ("none", packing))
    return packed.peak() - plain.peak()


def test_a_mask_is_quadratic_and_boundaries_are_nothing() -> None:
    """Under full checkpointing, at the loss: a boolean a pair of tokens, and in either case no positions of its own."""
    assert _extra(32768, "mask") == 32768**2 - 8 * 32768
    assert _extra(32768, "varlen") == -8 * 32768


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(2, packing="mask"),
        Recipe(2, "bf16", packing="mask", attention="math"),
        Recipe(2, "bf16", packing="varlen"),
    ],
    ids=["efficient", "math", "varlen"],
)
def test_one_definition_serves_ints_arrays_and_expressions(recipe: Recipe) -> None:
    words = words_of(load_shape("qwen2.5-7b"), recipe, accumulating=False)
    draws = random.Random(1)
    rows = [
        {
            "batch": draws.randint(1, 16), "sequence": draws.randint(1, 4096), "hidden": draws.randint(8, 8192),
            "layers": draws.randint(1, 90), "heads": 16, "kv_heads": 4, "head_dim": 8 * draws.randint(1, 16),
            "ffn": draws.randint(8, 30_000), "vocabulary": draws.randint(50, 200_000), "positions": 2048,
        }
        for _ in range(10)
    ]  # fmt: skip
    check_kinds(words, rows, lambda row: dict(named_sizes(**row)))
