"""Bytes to send, and seconds for them."""

import pytest

from efficient_training.errors import UserError
from efficient_training.sharding.traffic import (
    Link,
    Traffic,
    hiding_tokens,
    hybrid_traffic,
    ring_seconds,
    step_traffic,
)

PSI, N = 1000, 4
SHARE = (N - 1) / N


@pytest.mark.parametrize(
    ("strategy", "psis"),
    [
        ("ddp", 2),
        ("zero1", 3),
        ("fsdp-no-reshard", 2),
        ("fsdp", 3),
        ("fsdp1-full", 3),
        ("fsdp1-grad-op", 2),
        ("fsdp1-no-shard", 2),
        ("deepspeed-1", 3),
        ("deepspeed-2", 3),
        ("deepspeed-3", 3),
    ],
)
def test_a_step_in_units_of_its_parameters(strategy: str, psis: int) -> None:
    assert step_traffic(strategy, PSI).sent(N) == psis * 4 * PSI * SHARE


def test_micro_batches_gather_weights_again_and_reduce_once() -> None:
    for k in (1, 2, 8):
        assert step_traffic("ddp", PSI, micro_batches=k) == step_traffic("ddp", PSI)
        assert step_traffic("fsdp", PSI, micro_batches=k).sent(N) == (2 * k + 1) * 4 * PSI * SHARE
        assert step_traffic("fsdp", PSI, micro_batches=k, reduce_each=True).sent(N) == 3 * k * 4 * PSI * SHARE


def test_weights_and_gradients_may_be_sent_in_other_dtypes() -> None:
    assert step_traffic("fsdp", PSI, weight=2, gradient=4) == Traffic(all_gather=4 * PSI, reduce_scatter=4 * PSI)


def test_hsdp_reduces_only_parts_between_groups() -> None:
    within, between = hybrid_traffic(PSI, 2)
    assert within == step_traffic("fsdp", PSI)
    assert between == Traffic(all_reduce=2 * PSI)
    with pytest.raises(UserError, match="hybrid_traffic"):
        step_traffic("hsdp", PSI)


def test_seconds_are_bytes_over_bandwidth_and_a_latency_for_each_message() -> None:
    link = Link(bandwidth=1000, latency=0.5)
    assert ring_seconds(Traffic(all_gather=4000), 1, N, link) == 3 + 3 * 0.5
    assert ring_seconds(Traffic(), 0, N, link) == 0


def test_tokens_that_hide_the_communication_depend_on_the_machine_alone() -> None:
    link = Link(bandwidth=50e9)
    assert hiding_tokens("fsdp", N, 400e12, link) == pytest.approx(400e12 / 50e9 * SHARE)
    assert hiding_tokens("ddp", N, 400e12, link) == pytest.approx(hiding_tokens("fsdp", N, 400e12, link) * 2 / 3)
