"""The price of linear layers in fp8 is their trace, to the byte, over random models and recipes, and at true sizes."""

import os
from dataclasses import replace

import pytest
from draws import draw_fp8
from kinds import check_kinds

from efficient_training.models import load_shape
from efficient_training.price import named_sizes, price, words_of
from efficient_training.recipe import Recipe
from efficient_training.trace import trace
from efficient_training.workload import Workload

GROUP = 3
GROUPS = 40 if os.environ.get("SOAK") else 2
DEEPEST = 7 if os.environ.get("SOAK") else 3
LLAMA = Workload(load_shape("llama-3.1-8b"), 8192, 8192)
FULL = Recipe(1, "bf16", "full", optimizer="fused", loss="chunked")


@pytest.mark.parametrize("group", range(GROUPS))
def test_the_price_is_the_trace_to_the_byte(group: int) -> None:
    for seed in range(group * GROUP, (group + 1) * GROUP):
        workload, recipe = draw_fp8(seed, DEEPEST)
        traced, priced = trace(workload, recipe), price(workload, recipe)
        assert priced.entries == traced.entries, (seed, workload, recipe)


def test_at_true_sizes_too() -> None:
    workload, recipe = Workload(load_shape("qwen2.5-0.5b"), 2048, 2048), replace(FULL, fp8="tensorwise", loss="native")
    assert price(workload, recipe).entries == trace(workload, recipe).entries


def test_under_full_checkpointing_it_costs_what_the_chapter_derives() -> None:
    """7 T f + 2 T h - h f bytes, and four scales, for T tokens, h features and f of the MLP."""
    fp8 = price(LLAMA, replace(FULL, fp8="tensorwise"))
    tokens, hidden, ffn = LLAMA.sequence_length, LLAMA.model.hidden, LLAMA.model.ffn
    assert fp8.peak() - price(LLAMA, FULL).peak() == 7 * tokens * ffn + 2 * tokens * hidden - hidden * ffn + 16


@pytest.mark.parametrize("fp8", ["tensorwise", "rowwise", "rowwise-gw-hp"])
def test_without_checkpointing_it_saves_no_byte_of_the_peak(fp8: str) -> None:
    plain = replace(FULL, checkpointing="none")
    assert price(LLAMA, replace(plain, fp8=fp8)).peak() == price(LLAMA, plain).peak()  # type: ignore[arg-type]


def test_one_definition_serves_ints_arrays_and_expressions() -> None:
    recipe = Recipe(2, "bf16-autocast", loss="chunked", fp8="rowwise-gw-hp")
    words = words_of(load_shape("qwen2.5-7b"), recipe, accumulating=False)
    sizes = {"heads": 16, "kv_heads": 4, "positions": 2048, "vocabulary": 151_936, "head_dim": 128, "sequence": 4096}
    rows = [{"batch": n, "hidden": 512 * n, "layers": 4 * n, "ffn": 1024 * (8 - n), **sizes} for n in range(1, 8)]
    check_kinds(words, rows, lambda row: dict(named_sizes(**row)))
