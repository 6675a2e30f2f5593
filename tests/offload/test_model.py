import pytest
from hypothesis import given
from hypothesis import strategies as st

from efficient_training.errors import UserError
from efficient_training.offload.model import (
    Load,
    Rates,
    adam_seconds,
    efficiency,
    plain_seconds,
    slow_down,
    step_seconds,
    tokens_for,
)
from efficient_training.offload.traffic import ENGINES, LINKS, Traffic, traffic

INFINITE = float("inf")
WAYS = [(way, engine) for engine, ways in ENGINES.items() for way in ways]
ways = st.sampled_from(WAYS).map(lambda pair: traffic(*pair))
rate = st.floats(1e8, 1e13)
rates = st.builds(Rates, *[rate] * 7)
loads = st.builds(Load, st.floats(1e6, 1e12), st.integers(1, 10**6), st.integers(1, 100))


@given(loads, ways, st.booleans())
def test_infinite_bandwidths_cost_nothing(load: Load, moved: Traffic, overlap: bool) -> None:
    free = Rates(1e14, *[INFINITE] * 6)
    assert slow_down(load, moved, free, overlap=overlap) == 1


@given(loads, ways, rates)
def test_overlap_is_the_lower_limit(load: Load, moved: Traffic, machine: Rates) -> None:
    together, apart = (step_seconds(load, moved, machine, overlap=overlap) for overlap in (True, False))
    assert together <= apart
    compute = plain_seconds(load, machine) - adam_seconds(load.parameters, machine.device_memory)
    assert together >= compute * (1 - 1e-9)
    # two parts, of at most five times that add up
    assert apart <= 5 * together * (1 + 1e-9)


@given(ways, rates, st.integers(1, 10**5), st.booleans())
def test_more_tokens_never_make_it_slower(moved: Traffic, machine: Rates, tokens: int, overlap: bool) -> None:
    few, many = (slow_down(Load(1e9, count), moved, machine, overlap=overlap) for count in (tokens, 2 * tokens))
    assert abs(many - 1) <= abs(few - 1) + 1e-9


@given(ways, rates, st.floats(1.01, 10))
def test_tokens_for_a_limit(moved: Traffic, machine: Rates, limit: float) -> None:
    tokens = tokens_for(limit, 1e9, moved, machine)
    reached = slow_down(Load(1e9, tokens), moved, machine, overlap=False)
    assert reached == pytest.approx(limit, rel=1e-6) if tokens else reached <= limit * (1 + 1e-9)


def test_a_limit_below_one_has_no_tokens() -> None:
    with pytest.raises(ValueError, match="above 1"):
        tokens_for(1, 1e9, traffic("optimizer"), Rates(*[1e9] * 7))


@given(st.integers(1, 10**6), rate, st.floats(1e12, 1e16))
def test_zero_infinitys_efficiency_is_the_step_without_overlap(tokens: int, bandwidth: float, peak: float) -> None:
    machine = Rates(peak, INFINITE, INFINITE, bandwidth, bandwidth, bandwidth, bandwidth)
    load = Load(1e9, tokens, flops_per_parameter=8)
    # weights three times up (forward, recomputation, backward) and gradients down: 8 bytes, tokens operations a byte
    weights = Traffic(micro_batch={"up": 6}, last_backward={"down": 2})
    assert 1 / slow_down(load, weights, machine, overlap=False) == pytest.approx(efficiency(tokens, bandwidth, peak))
    # the optimizer's state: 32 bytes, a quarter
    state = Traffic(optimizer_step={"read": 16, "write": 16})
    assert 1 / slow_down(load, state, machine, overlap=False) == pytest.approx(efficiency(tokens / 4, bandwidth, peak))


def test_a_step_by_hand() -> None:
    machine = Rates(compute=6e12, device_memory=28e9, host_memory=14e9, up=1e9, down=2e9, read=4e9, write=8e9)
    load = Load(1e9, 1000)
    assert plain_seconds(load, machine) == 1 + 1
    moved = traffic("optimizer-nvme")
    # compute 1; 2 GB down at 2 GB/s; 4 GB written at 8. Then Adam 2; 2 GB up at 1; 16 GB read at 4 and 12 written at 8.
    assert step_seconds(load, moved, machine, overlap=False) == 1 + 1 + 0.5 + 2 + 2 + 4 + 1.5
    assert step_seconds(load, moved, machine, overlap=True) == max(1, 1, 0.5) + max(2, 2, 4 + 1.5)


@pytest.mark.parametrize("engine", ["deepspeed", "fsdp2"])
@pytest.mark.parametrize("batches", [1, 8])
def test_no_library_moves_less_than_the_least(engine: str, batches: int) -> None:
    for way, moved in ENGINES[engine].items():
        for link in LINKS:
            assert moved.total(link, batches) >= traffic(way).total(link, batches)


def test_the_papers_sums() -> None:
    assert sum(traffic("optimizer").total(link) for link in LINKS) == 4
    disk = traffic("optimizer-nvme")
    assert disk.total("read") == disk.total("write") == 16


def test_unknown_words_are_told() -> None:
    with pytest.raises(UserError, match="no engine 'megatron'; known: least, deepspeed, fsdp2"):
        traffic("optimizer", "megatron")
    with pytest.raises(UserError, match="fsdp2 has no 'optimizer'; known: none, parameters"):
        traffic("optimizer", "fsdp2")
    with pytest.raises(UserError, match="rate up must be above zero, got 0"):
        Rates(1, 1, 1, 0, 1)
