"""Packings against naive ones, and against each other."""

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise, permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from efficient_training.errors import UserError
from efficient_training.packing import (
    Packing,
    best_fit_decreasing,
    cut_documents,
    fewest_packs,
    first_fit_decreasing,
    gather,
    next_fit,
    padded_tokens,
)

Problem = tuple[list[int], int]
ALGORITHMS = (best_fit_decreasing, first_fit_decreasing, next_fit)


@st.composite
def problems(draw: st.DrawFn, most: int = 60) -> Problem:
    capacity = draw(st.integers(1, 40))
    return draw(st.lists(st.integers(1, capacity), min_size=1, max_size=most)), capacity


def decreasing(lengths: Sequence[int]) -> list[int]:
    return sorted(range(len(lengths)), key=lambda index: -lengths[index])


def naive(
    lengths: Sequence[int],
    capacity: int,
    order: Iterable[int],
    choose: Callable[[list[tuple[int, int]]], tuple[int, int]],
) -> list[list[int]]:
    """Packs of indices, one sequence at a time; `choose` gets (space, pack) of the packs that fit, oldest first."""
    spaces: list[int] = []
    packs: list[list[int]] = []
    for index in order:
        fits = [(space, pack) for pack, space in enumerate(spaces) if space >= lengths[index]]
        if fits:
            pack = choose(fits)[1]
        else:
            pack = len(packs)
            spaces.append(capacity)
            packs.append([])
        spaces[pack] -= lengths[index]
        packs[pack].append(index)
    return packs


def as_lists(packing: Packing) -> list[list[int]]:
    return [pack.tolist() for pack in packing]


@given(problems())
def test_every_sequence_is_in_one_pack_and_every_pack_holds_it(problem: Problem) -> None:
    lengths, capacity = problem
    for algorithm in ALGORITHMS:
        packing = algorithm(lengths, capacity)
        packs = as_lists(packing)
        assert sorted(index for pack in packs for index in pack) == list(range(len(lengths)))
        assert packing.tokens.tolist() == [sum(lengths[index] for index in pack) for pack in packs]
        assert packing.tokens.min() > 0
        assert packing.tokens.max() <= capacity
        assert len(packing) == len(packs)
        assert packing.fill == pytest.approx(sum(lengths) / (len(packs) * capacity))


@given(problems())
def test_first_fit_decreasing_is_the_naive_one(problem: Problem) -> None:
    lengths, capacity = problem
    wanted = naive(lengths, capacity, decreasing(lengths), lambda fits: fits[0])
    assert as_lists(first_fit_decreasing(lengths, capacity)) == wanted


@given(problems())
def test_best_fit_decreasing_leaves_what_the_naive_one_leaves(problem: Problem) -> None:
    lengths, capacity = problem
    wanted = naive(lengths, capacity, decreasing(lengths), min)
    contents = sorted(sum(lengths[index] for index in pack) for pack in wanted)
    assert sorted(best_fit_decreasing(lengths, capacity).tokens.tolist()) == contents


@given(problems())
def test_best_fit_takes_the_last_used_of_equal_packs(problem: Problem) -> None:
    lengths, capacity = problem
    spaces: list[int] = []
    used: list[int] = []
    packs: list[list[int]] = []
    for turn, index in enumerate(decreasing(lengths)):
        fits = [(spaces[pack], -used[pack], pack) for pack in range(len(packs)) if spaces[pack] >= lengths[index]]
        if fits:
            pack = min(fits)[2]
        else:
            pack = len(packs)
            spaces.append(capacity)
            used.append(0)
            packs.append([])
        spaces[pack] -= lengths[index]
        used[pack] = turn
        packs[pack].append(index)
    assert as_lists(best_fit_decreasing(lengths, capacity)) == packs


@given(problems())
def test_next_fit_keeps_the_order(problem: Problem) -> None:
    lengths, capacity = problem
    packs = as_lists(next_fit(lengths, capacity))
    assert [index for pack in packs for index in pack] == list(range(len(lengths)))
    for pack, after in pairwise(packs):
        assert sum(lengths[index] for index in pack) + lengths[after[0]] > capacity


@given(problems(most=6))
def test_no_packing_gets_below_the_bound(problem: Problem) -> None:
    lengths, capacity = problem
    best = min(
        len(naive(lengths, capacity, order, lambda fits: fits[0])) for order in permutations(range(len(lengths)))
    )
    bound = fewest_packs(lengths, capacity)
    assert max(-(-sum(lengths) // capacity), sum(2 * length > capacity for length in lengths)) <= bound <= best


def test_the_bound_sees_sequences_over_half() -> None:
    assert fewest_packs([6] * 10, 10) == 10
    assert fewest_packs([6, 6, 5, 5, 5], 10) == 4  # not 3: a 5 does not fit beside a 6


def test_best_fit_fills_where_next_fit_does_not() -> None:
    lengths = [7, 5, 3, 5]
    assert len(best_fit_decreasing(lengths, 10)) == 2
    assert len(next_fit(lengths, 10)) == 3


@pytest.mark.parametrize(
    ("lengths", "capacity", "words"),
    [
        ([3, 11, 2], 10, "sequence 1 has 11 tokens, more than the 10 of a pack"),
        ([3, 0, 2], 10, "sequence 1 is empty"),
        ([3, -1], 10, "sequence 1 is empty"),
        ([], 10, "no sequence to pack"),
        ([[1, 2]], 10, "no sequence to pack"),
        ([1.5], 10, "whole numbers"),
        ([1], 0, "at least 1 token"),
    ],
)
def test_what_cannot_be_packed_is_refused_in_one_line(lengths: Any, capacity: int, words: str) -> None:
    for algorithm in (*ALGORITHMS, fewest_packs):
        with pytest.raises(UserError, match=words) as caught:
            algorithm(lengths, capacity)
        assert "\n" not in str(caught.value)


@given(problems())
def test_tokens_follow_their_sequences(problem: Problem) -> None:
    lengths, capacity = problem
    tokens = np.concatenate([np.full(length, index) for index, length in enumerate(lengths)])
    packing = best_fit_decreasing(lengths, capacity)
    for moved, pack in zip(gather(tokens, packing), packing, strict=True):
        assert moved.tolist() == [index for index in pack for _ in range(lengths[index])]


def test_missing_tokens_are_refused() -> None:
    with pytest.raises(UserError, match="4 tokens for sequences of 5"):
        next(gather(np.zeros(4), next_fit([2, 3], 5)))


def test_padding_counts_each_batch_at_its_longest() -> None:
    assert padded_tokens([1, 5, 2, 2, 7], 2) == 2 * 5 + 2 * 2 + 7
    assert padded_tokens([4, 4, 4], 8) == 12
    with pytest.raises(UserError, match="at least 1 sequence"):
        padded_tokens([1], 0)


def test_cut_documents_are_those_that_lie_across_a_boundary() -> None:
    assert cut_documents([4, 4], 4) == 0
    assert cut_documents([3, 3, 2], 4) == 1
    assert cut_documents([9], 4) == 1


def test_a_million_lengths_are_packed_to_within_a_thousandth_of_the_bound() -> None:
    lengths = np.random.default_rng(0).integers(1, 2049, 1_000_000)
    bound = fewest_packs(lengths, 2048)
    assert bound <= len(best_fit_decreasing(lengths, 2048)) <= 1.001 * bound
