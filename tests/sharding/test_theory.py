"""Bytes of states by formula, on shapes that can be counted by hand."""

import math

import pytest

from efficient_training.errors import UserError
from efficient_training.sharding.theory import (
    BF16,
    FP32,
    MIXED_WITH_MASTER,
    StateDtypes,
    ideal_bytes,
    shard_rows,
    state_bytes,
)
from efficient_training.sharding.words import STRATEGIES

UNITS = [[(7, 4), (4,)], [(5, 3), (5,)]]  # 28 + 4 numbers, 15 + 5
TOTAL = 52


def test_the_papers_figures() -> None:
    psi = 7_500_000_000
    gigabytes = [round(ideal_bytes(stage, psi, 64) / 1e9, 1) for stage in range(4)]
    assert gigabytes == [120.0, 31.4, 16.6, 1.9]  # figure 1 of arXiv:1910.02054
    assert (FP32.replicated, MIXED_WITH_MASTER.replicated, BF16.replicated) == (16, 16, 8)


@pytest.mark.parametrize("stage", [-1, 4, 1.5, "2"])
def test_another_stage_is_refused(stage: object) -> None:
    with pytest.raises(UserError, match="ZeRO stage"):
        ideal_bytes(stage, 1, 1)  # type: ignore[arg-type]


def test_one_rank_holds_everything_under_every_strategy() -> None:
    for strategy in STRATEGIES:
        dtypes = StateDtypes(master=4) if strategy.startswith("deepspeed") else FP32
        held = state_bytes(strategy, UNITS, 1, 0, dtypes, shard_ranks=1)
        tensors = 1 if strategy.startswith("deepspeed") else 2 if strategy.startswith("fsdp1") else 4
        assert held["weights"] == held["gradients"] == 4 * TOTAL, strategy
        assert held["optimizer state"] == 8 * TOTAL + 4 * tensors, strategy
        assert held["master weights"] == dtypes.master * TOTAL, strategy


def test_fsdp_cuts_rows_and_pads_to_whole_chunks() -> None:
    assert [shard_rows(7, 4, rank) for rank in range(4)] == [(2, 2), (2, 2), (2, 2), (1, 2)]
    assert [shard_rows(2, 4, rank) for rank in range(4)] == [(1, 1), (1, 1), (0, 1), (0, 1)]
    last = state_bytes("fsdp", UNITS, 4, 3)
    # Chunks of 2 x 4, 1, 2 x 3 and 2 numbers are allocated; owned are 1 x 4, 1, and, of 5 rows, none.
    assert last["weights"] == last["gradients"] == 4 * (8 + 1 + 6 + 2)
    assert last["optimizer state"] == 8 * (4 + 1) + 4 * 4


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7, 60])
@pytest.mark.parametrize("strategy", ["zero1", "fsdp"])
def test_the_moments_of_all_ranks_are_those_of_the_model(strategy: str, ranks: int) -> None:
    state = sum(state_bytes(strategy, UNITS, ranks, rank)["optimizer state"] for rank in range(ranks))
    assert state == 8 * TOTAL + 4 * (4 if strategy == "zero1" else 4 * ranks)


def test_hsdp_is_fsdp_within_a_group() -> None:
    for rank in range(6):
        assert state_bytes("hsdp", UNITS, 6, rank, shard_ranks=3) == state_bytes("fsdp", UNITS, 3, rank % 3)


def test_zero1_hands_out_whole_parameters() -> None:
    # 28 numbers to the first, and 15, 5 and 4 to the second of two ranks.
    assert [state_bytes("zero1", UNITS, 2, rank)["optimizer state"] for rank in range(2)] == [
        8 * 28 + 4,
        8 * 24 + 3 * 4,
    ]
    assert state_bytes("zero1", UNITS, 8, 7)["optimizer state"] == 0


def test_deepspeed_cuts_what_lies_end_to_end_and_keeps_gradients_of_whole_parameters() -> None:
    dtypes = StateDtypes(weight=2, gradient=2, master=4)
    # 52 numbers on 3 ranks, padded to a multiple of 2 x 3: 54, so 18 each. The first cut is within the first parameter.
    first, second, last = (state_bytes("deepspeed-2", UNITS, 3, rank, dtypes) for rank in range(3))
    assert first["weights"] == 54 * 2
    assert first["gradients"] == 28 * 2
    assert second["gradients"] == (28 + 4 + 15) * 2
    assert last["gradients"] == (15 + 5 + 2) * 2
    assert {one["master weights"] for one in (first, second, last)} == {18 * 4}
    third = state_bytes("deepspeed-3", UNITS, 3, 0, dtypes)
    part = sum(math.ceil(size / 3) for size in (28, 4, 15, 5))
    assert third == {
        "weights": 2 * part,
        "gradients": 2 * part,
        "optimizer state": 8 * part + 4,
        "master weights": 4 * part,
    }


def test_wrong_words_and_ranks_are_refused() -> None:
    with pytest.raises(UserError, match="unknown strategy 'zero3'; known: ddp"):
        state_bytes("zero3", UNITS, 2, 0)
    for rank in (-1, 2):
        with pytest.raises(UserError, match="rank must be from 0 to 1"):
            state_bytes("ddp", UNITS, 2, rank)
