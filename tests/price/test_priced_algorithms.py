"""The price of every optimizer is its trace, to the byte, in the step and in backward."""

import os
import random
from typing import get_args

import pytest
from draws import draw_algorithm
from kinds import check_kinds

from efficient_training.models import load_shape
from efficient_training.optimizer_state import MIN_QUANTIZED, state_bytes
from efficient_training.price import named_sizes, price, words_of
from efficient_training.price.parameters import tables
from efficient_training.price.sizes import sizes_of
from efficient_training.price.state import state_sizes
from efficient_training.recipe import Algorithm, Recipe
from efficient_training.trace import trace
from efficient_training.workload import Workload

WORDS = get_args(Algorithm)
SOAK = bool(os.environ.get("SOAK"))


@pytest.mark.parametrize("group", range(20 if SOAK else 1))
def test_the_price_is_the_trace_to_the_byte(group: int) -> None:
    for seed in range(group * 10, group * 10 + 10):
        workload, recipe = draw_algorithm(100 + seed)
        assert price(workload, recipe).entries == trace(workload, recipe).entries, (seed, workload, recipe)


@pytest.mark.parametrize("word", WORDS if SOAK else ["muon", "torchao-adamw4bit"])
def test_the_price_of_a_true_model_is_the_trace_to_the_byte(word: Algorithm) -> None:
    workload = Workload(load_shape("qwen2.5-0.5b"), 512, 512)
    recipe = Recipe(1, "bf16-autocast", "full", algorithm=word)
    assert price(workload, recipe).entries == trace(workload, recipe).entries


@pytest.mark.parametrize("in_backward", [False, True])
@pytest.mark.parametrize("word", ["adafactor", "muon", "bnb-adamw8bit", "torchao-adamw4bit"])
def test_one_definition_serves_ints_arrays_and_expressions(word: Algorithm, in_backward: bool) -> None:
    recipe = Recipe(1, "bf16", algorithm=word, step_in_backward=in_backward)
    rows = []
    for seed in range(8):
        draw = random.Random(seed)
        rows.append(
            {
                "batch": 2, "sequence": draw.randint(1, 64), "hidden": draw.choice([8, 24, 64, 100]), "layers": 3,
                "heads": 4, "kv_heads": 2, "head_dim": draw.choice([8, 16, 32]), "ffn": draw.randint(8, 300),
                "vocabulary": draw.randint(50, 400), "positions": 64,
            }
        )  # fmt: skip
    check_kinds(words_of(load_shape("qwen2.5-7b"), recipe, False), rows, lambda row: dict(named_sizes(**row)))


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("name", ["gpt2", "qwen2.5-0.5b"])
def test_state_is_that_of_state_bytes(word: Algorithm, name: str) -> None:
    """The formulas over named sizes, and those over shapes."""
    model = load_shape(name)
    words = words_of(model, Recipe(1, algorithm=word), False)
    sizes = state_sizes(words, sizes_of(model))
    assert sizes["state"] == state_bytes(word, _shapes(name)).total
    small = [one for one, size in tables(words).block if sizes[f"quantized_{one}"] == 0]
    assert ("norm1.weight" in small) == (model.hidden < MIN_QUANTIZED)


def test_what_a_price_leaves_open_is_noted() -> None:
    workload = Workload(load_shape("gpt2"), 8, 8)
    assert "compiled" in price(workload, Recipe(1, algorithm="torchao-adamwfp8")).notes[0]
    assert "driver" in price(workload, Recipe(1, algorithm="bnb-paged-adamw8bit")).notes[0]
    assert price(workload, Recipe(1, algorithm="bnb-adamw8bit")).notes == ()


def _shapes(name: str) -> dict[str, tuple[int, ...]]:
    from efficient_training.run import build_model

    return {n: tuple(p.shape) for n, p in build_model(load_shape(name), Recipe(1), "meta").named_parameters()}
