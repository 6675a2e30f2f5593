"""The price is the trace: the same ledger, to the byte, over random models and recipes."""

import os
import random
import subprocess
import sys

import pytest
from draws import draw
from kinds import check_kinds

from efficient_training.errors import UserError
from efficient_training.models import load_shape
from efficient_training.price import named_sizes, price, words_of
from efficient_training.recipe import Recipe
from efficient_training.trace import trace
from efficient_training.workload import Workload

NAMES = ("batch", "sequence", "hidden", "layers", "heads", "kv_heads", "head_dim", "ffn", "vocabulary", "positions")
GROUP = 10
GROUPS = 20 if os.environ.get("SOAK") else 5


@pytest.mark.parametrize("group", range(GROUPS))
def test_the_price_is_the_trace_to_the_byte(group: int) -> None:
    for seed in range(group * GROUP, (group + 1) * GROUP):
        workload, recipe = draw(seed)
        traced, priced = trace(workload, recipe), price(workload, recipe)
        assert priced.entries == traced.entries, (seed, workload, recipe)


def _values(draw_one: random.Random) -> dict[str, int]:
    return {
        "batch": draw_one.randint(1, 16), "sequence": draw_one.randint(1, 4096), "hidden": draw_one.randint(8, 8192),
        "layers": draw_one.randint(1, 90), "heads": 16, "kv_heads": 4, "head_dim": 2 * draw_one.randint(4, 64),
        "ffn": draw_one.randint(8, 30_000), "vocabulary": draw_one.randint(50, 200_000), "positions": 2048,
        "checkpoint_every": draw_one.randint(1, 9),
    }  # fmt: skip


@pytest.mark.parametrize("recipe", [Recipe(2), Recipe(2, "bf16-autocast", "full", loss="chunked", optimizer="loop")])
def test_one_definition_serves_ints_arrays_and_expressions(recipe: Recipe) -> None:
    words = words_of(load_shape("qwen2.5-7b"), recipe, accumulating=False)
    rows = [_values(random.Random(seed)) for seed in range(30)]
    check_kinds(words, rows, lambda row: dict(named_sizes(**row)))


def test_a_price_needs_no_torch() -> None:
    code = (
        "import sys; from efficient_training.price import price; from efficient_training.models import load_shape;"
        "from efficient_training.workload import Workload; from efficient_training.recipe import Recipe;"
        "price(Workload(load_shape('qwen2.5-0.5b'), 1024, 8192), Recipe(8));"
        "sys.exit(int('torch' in sys.modules or 'numpy' in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_what_has_no_closed_form_is_refused() -> None:
    workload = Workload(load_shape("qwen2.5-0.5b"), 1024, 8192)
    with pytest.raises(UserError, match="compile"):
        price(workload, Recipe(8, compile=True))
    with pytest.raises(UserError, match="must divide"):
        price(workload, Recipe(3))
