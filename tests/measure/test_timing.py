import time

import pytest

from efficient_training.measure.timing import STEP, Duration, PhaseTimer, ratio, time_steps


def test_phases_are_timed_apart_and_add_up_within_a_step() -> None:
    def step(timer: PhaseTimer) -> None:
        for _ in range(2):
            with timer.phase("forward"):
                time.sleep(0.01)
            with timer.phase("backward"):
                time.sleep(0.03)

    durations = time_steps(step, "cpu", steps=3, warmup=1)
    assert len(durations[STEP].samples_s) == 3
    assert durations["forward"].median_s >= 0.02
    assert durations["backward"].median_s >= 0.06
    assert durations[STEP].median_s >= durations["forward"].median_s + durations["backward"].median_s


def test_warm_up_steps_are_run_and_not_counted() -> None:
    calls: list[int] = []

    def step(timer: PhaseTimer) -> None:
        calls.append(len(calls))
        if len(calls) <= 2:
            time.sleep(0.2)

    durations = time_steps(step, "cpu", steps=3, warmup=2)
    assert len(calls) == 5
    assert max(durations[STEP].samples_s) < 0.2


@pytest.mark.parametrize(("steps", "warmup"), [(0, 1), (1, 0)])
def test_a_measurement_needs_steps_and_a_warm_up(steps: int, warmup: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        time_steps(lambda timer: None, "cpu", steps=steps, warmup=warmup)


def test_median_and_spread() -> None:
    assert Duration((1.0, 2.0, 3.0, 4.0, 100.0)).median_s == 3.0
    assert Duration((1.0, 2.0, 3.0, 4.0, 5.0)).iqr_s == 2.0
    assert Duration((1.0,)).iqr_s == 0.0
    assert ratio(Duration((4.0,)), Duration((2.0,))) == 2.0
