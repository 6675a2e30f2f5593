import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from efficient_training.measure.caching import AllocationFailed, CachingAllocator

MIB = 2**20


def test_sizes_of_segments() -> None:
    """512-byte rounding; segments of 2 MiB, 20 MiB, and of their own size rounded to 2 MiB."""
    made = CachingAllocator(10**12)
    made.allocate(1)
    assert (made.allocated, made.reserved) == (512, 2 * MIB)
    made.allocate(MIB + 1)
    assert (made.allocated, made.reserved) == (512 + MIB + 512, 22 * MIB)
    made.allocate(33 * MIB + 1)
    assert made.reserved == (22 + 34) * MIB


def test_the_smallest_block_that_fits_is_taken_and_split() -> None:
    made = CachingAllocator(10**12)
    for block in [made.allocate(64 * MIB), made.allocate(32 * MIB)]:
        made.free(block)
    made.allocate(20 * MIB)
    assert (made.reserved, made.largest_free) == (96 * MIB, 64 * MIB)
    made.allocate(12 * MIB)
    assert made.reserved == 96 * MIB


def test_a_large_remainder_of_up_to_one_mib_stays_with_its_block() -> None:
    made = CachingAllocator(10**12)
    made.free(made.allocate(32 * MIB))
    made.allocate(31 * MIB)
    assert made.allocated == 32 * MIB


def test_fragmentation_fails_although_enough_is_free() -> None:
    made = CachingAllocator(64 * MIB)
    whole = made.allocate(64 * MIB)
    made.free(whole)
    parts = [made.allocate(16 * MIB) for _ in range(4)]
    assert made.reserved == 64 * MIB
    made.free(parts[0])
    made.free(parts[2])
    with pytest.raises(AllocationFailed, match=f"the largest free block has {16 * MIB}"):
        made.allocate(32 * MIB)
    made.free(parts[1])
    made.allocate(32 * MIB)


def test_whole_free_segments_go_back_before_the_request_fails() -> None:
    made = CachingAllocator(64 * MIB)
    made.free(made.allocate(40 * MIB))
    made.allocate(60 * MIB)
    assert (made.retries, made.reserved) == (1, 60 * MIB)


def test_a_block_is_freed_once() -> None:
    made = CachingAllocator(64 * MIB)
    block = made.allocate(MIB)
    made.free(block)
    with pytest.raises(ValueError, match="free already"):
        made.free(block)


@given(st.integers(0, 2**32), st.lists(st.integers(1, 30 * MIB), min_size=1, max_size=60))
def test_bytes_add_up_and_all_of_them_come_back(seed: int, sizes: list[int]) -> None:
    made, live, order = CachingAllocator(10**12), [], random.Random(seed)
    for size in sizes:
        live.append(made.allocate(size))
        if live and order.random() < 0.5:
            made.free(live.pop(order.randrange(len(live))))
        assert made.allocated == sum(block.size for block in live)
        assert made.reserved == made.allocated + sum(block.size for block in made._free)
        assert all(block.size >= block.requested for block in live)
    for block in live:
        made.free(block)
    assert made.allocated == 0
    assert all(block.whole for block in made._free)
    made.empty_cache()
    assert made.reserved == 0
