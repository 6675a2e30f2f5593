"""Time of a training step and of its phases: warmed up, synchronized, and stated as a median with its spread.

On CUDA, phases are timed by events on the stream, so that nothing waits inside a step; elsewhere by the clock. The
first steps are dropped: they choose kernels, fill caches and allocate optimizer state (huggingface/diffusers#10611).
"""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

STEP = "step"
"""The name of the whole step among the phases."""


@dataclass(frozen=True)
class Duration:
    """Times of one phase over the counted steps, in seconds."""

    samples_s: tuple[float, ...]

    @property
    def median_s(self) -> float:
        """The median, in seconds."""
        return statistics.median(self.samples_s)

    @property
    def iqr_s(self) -> float:
        """The interquartile range, in seconds: zero for a single sample."""
        if len(self.samples_s) < 2:
            return 0.0
        low, _, high = statistics.quantiles(self.samples_s, n=4, method="inclusive")
        return high - low


class PhaseTimer:
    """Collects the times of named phases of one step; a phase entered several times adds up within the step.

    Hand `timer.phase` to `Trainer.step`. `finish()` ends the step and returns seconds by phase, the whole step too.
    """

    def __init__(self, device: torch.device | str) -> None:
        self._cuda = torch.device(device).type == "cuda"
        self._marks: list[tuple[str, object, object]] = []
        self._begin = self._now()

    def _now(self) -> object:
        if not self._cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time what runs inside the block under `name`."""
        begin = self._now()
        yield
        self._marks.append((name, begin, self._now()))

    def finish(self) -> dict[str, float]:
        """Seconds by phase since the timer was made, `step` for all of it; waits for the device once."""
        self._marks.append((STEP, self._begin, self._now()))
        if self._cuda:
            torch.cuda.synchronize()
        seconds: dict[str, float] = {}
        for name, begin, end in self._marks:
            seconds[name] = seconds.get(name, 0.0) + self._seconds(begin, end)
        return seconds

    def _seconds(self, begin: object, end: object) -> float:
        if isinstance(begin, float) and isinstance(end, float):
            return end - begin
        return begin.elapsed_time(end) / 1000  # type: ignore[attr-defined, no-any-return]


def time_steps(
    step: Callable[[PhaseTimer], object], device: torch.device | str, *, steps: int = 10, warmup: int = 3
) -> dict[str, Duration]:
    """Run `step` `warmup + steps` times, and return the durations by phase over the last `steps`.

    `step` is given a timer whose `phase` it may use. Raises `ValueError` unless both numbers are positive: a step
    without warm-up measures the choice of kernels.
    """
    if steps < 1 or warmup < 1:
        raise ValueError(f"steps and warmup must be at least 1, got {steps} and {warmup}")
    counted: list[dict[str, float]] = []
    for number in range(warmup + steps):
        if torch.device(device).type == "cuda":
            torch.cuda.synchronize()
        timer = PhaseTimer(device)
        step(timer)
        seconds = timer.finish()
        if number >= warmup:
            counted.append(seconds)
    return {name: Duration(tuple(row[name] for row in counted)) for name in counted[0]}


def ratio(slow: Duration, fast: Duration) -> float:
    """How many times `slow` takes the time of `fast`, by medians."""
    return slow.median_s / fast.median_s


__all__: Sequence[str] = ("STEP", "Duration", "PhaseTimer", "ratio", "time_steps")
