"""The price of a recipe over several ranks is its trace, to the byte, over random models and recipes."""

import os

import pytest
from draws import draw_sharded

from efficient_training.price import price
from efficient_training.trace import trace

GROUP = 6
GROUPS = 30 if os.environ.get("SOAK") else 5


@pytest.mark.parametrize("group", range(GROUPS))
def test_the_price_is_the_trace_to_the_byte(group: int) -> None:
    for seed in range(group * GROUP, (group + 1) * GROUP):
        workload, recipe = draw_sharded(seed)
        traced, priced = trace(workload, recipe), price(workload, recipe)
        assert priced.entries == traced.entries, (seed, workload, recipe)
