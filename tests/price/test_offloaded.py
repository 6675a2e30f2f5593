"""The price of what waits in host memory is its trace, to the byte, by place, over random models and recipes."""

import os

import pytest
from draws import draw_offloaded

from efficient_training.models import load_shape
from efficient_training.price import price
from efficient_training.recipe import Recipe
from efficient_training.trace import trace
from efficient_training.workload import Workload

GROUP = 5
GROUPS = 24 if os.environ.get("SOAK") else 3


@pytest.mark.parametrize("group", range(GROUPS))
def test_the_price_is_the_trace_to_the_byte_in_each_place(group: int) -> None:
    for seed in range(group * GROUP, (group + 1) * GROUP):
        workload, recipe = draw_offloaded(seed)
        traced, priced = trace(workload, recipe), price(workload, recipe)
        assert set(traced.entries) == {"device", "host"}
        assert priced.entries == traced.entries, (seed, workload, recipe)
        assert not priced.notes


def test_gradients_that_are_accumulated_on_the_host_need_room_for_one_more() -> None:
    """`foreach_reduce` copies a parameter's reduced gradient down, then adds it: the largest is the embedding's."""
    shape = load_shape("qwen2.5-0.5b")
    ledgers = [
        price(Workload(shape, 512, 512 * 4 * steps), Recipe(1, ranks=4, sharding="fsdp", offload="parameters"))
        for steps in (1, 2)
    ]
    one, two = (ledger.entries["host"]["backward"] for ledger in ledgers)
    assert two["temporaries"] == shape.vocab * shape.hidden // 4 * 4
    assert one == {name: size for name, size in two.items() if name != "temporaries"}
