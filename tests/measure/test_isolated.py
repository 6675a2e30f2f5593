import os
import signal

import pytest

from efficient_training.measure.isolated import IsolatedRunFailed, run_isolated


def test_a_function_runs_in_another_process_and_returns_json() -> None:
    made = run_isolated("json:dumps", {"obj": [1, 2]})
    assert made == "[1, 2]"
    assert run_isolated("os:getpid", {}) != os.getpid()


def test_the_environment_is_there_from_the_start() -> None:
    assert run_isolated("os:getenv", {"key": "PYTHONHASHSEED"}, environment={"PYTHONHASHSEED": "7"}) == "7"


def test_an_exception_is_shown_by_its_last_lines() -> None:
    with pytest.raises(IsolatedRunFailed, match=r"math:sqrt: exit code 1[\s\S]*TypeError"):
        run_isolated("math:sqrt", {"x": "text"})


def test_a_killed_process_is_told_by_its_signal() -> None:
    with pytest.raises(IsolatedRunFailed, match=f"killed by signal {signal.SIGABRT.value}"):
        run_isolated("os:abort", {})


def test_a_timeout_ends_the_process() -> None:
    with pytest.raises(IsolatedRunFailed, match=r"took more than 0\.5 s"):
        run_isolated("signal:pause", {}, timeout_s=0.5)
