"""How long a step takes that moves bytes over slow links, and how much slower it is than one that moves none.

Two limits: nothing overlaps, so that all times add up; or all that may overlap does, so that the slowest link counts.
What cannot overlap stays apart: the optimizer step needs the last gradient.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import UserError
from .traffic import LINKS, Bytes, Link, Traffic

ADAM_BYTES = 28
"""Bytes that fp32 Adam moves for each parameter: it reads weight, gradient and two moments, and writes all but one."""

FLOPS_PER_PARAMETER = 6
"""Operations for each parameter and token: two in forward, four in backward; eight with full recomputation."""


@dataclass(frozen=True)
class Rates:
    """A machine in numbers: operations per second reached in training, and bytes per second of its memories and links.

    Infinite bandwidths are allowed; all others must be above zero.
    """

    compute: float
    device_memory: float
    host_memory: float
    up: float
    down: float
    read: float = float("inf")
    write: float = float("inf")

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not value > 0:
                raise UserError(f"offload: rate {name} must be above zero, got {value}")

    def link(self, link: Link) -> float:
        """Bytes per second of one link."""
        return {"up": self.up, "down": self.down, "read": self.read, "write": self.write}[link]


@dataclass(frozen=True)
class Load:
    """What one optimizer step trains: parameters, tokens of a micro-batch, micro-batches, operations per parameter."""

    parameters: float
    tokens: float
    micro_batches: int = 1
    flops_per_parameter: float = FLOPS_PER_PARAMETER


def adam_seconds(parameters: float, bandwidth: float) -> float:
    """Seconds of an Adam step that is bound by memory of `bandwidth` bytes per second."""
    return parameters * ADAM_BYTES / bandwidth


def plain_seconds(load: Load, rates: Rates) -> float:
    """Seconds of the step that offloads nothing: forward and backward, and Adam in the GPU's memory."""
    return _compute(load, rates) + adam_seconds(load.parameters, rates.device_memory)


def step_seconds(load: Load, moved: Traffic, rates: Rates, *, overlap: bool) -> float:
    """Seconds of the step that moves `moved`, with Adam on the host. With `overlap`, a limit that nothing undercuts."""
    passes = {
        link: load.micro_batches * moved.micro_batch.get(link, 0) + moved.last_backward.get(link, 0) for link in LINKS
    }
    first = [_compute(load, rates), *_transfers(load, passes, rates, together=overlap)]
    then = [
        adam_seconds(load.parameters, rates.host_memory),
        *_transfers(load, moved.optimizer_step, rates, together=overlap),
    ]
    join = max if overlap else sum
    return join(first) + join(then)


def slow_down(load: Load, moved: Traffic, rates: Rates, *, overlap: bool) -> float:
    """Time of the offloaded step over that of the plain one."""
    return step_seconds(load, moved, rates, overlap=overlap) / plain_seconds(load, rates)


def tokens_for(limit: float, parameters: float, moved: Traffic, rates: Rates) -> float:
    """Tokens of a step of one micro-batch from which on the slow-down without overlap is at most `limit`; at least 0.

    Solves `step = limit x plain` for the tokens. Raises `ValueError` unless `limit` is above 1.
    """
    if limit <= 1:
        raise ValueError(f"limit must be above 1, got {limit}")
    nothing = Load(parameters, 0)
    extra = step_seconds(nothing, moved, rates, overlap=False) - limit * plain_seconds(nothing, rates)
    return max(0.0, extra / (limit - 1) / (FLOPS_PER_PARAMETER * parameters / rates.compute))


def efficiency(intensity: float, bandwidth: float, peak: float) -> float:
    """ZeRO-Infinity's efficiency: the share of time spent computing where nothing overlaps.

    `intensity` in operations per byte moved, `bandwidth` in bytes and `peak` in operations per second
    (Rajbhandari et al. 2021, section 4).
    """
    return intensity * bandwidth / (intensity * bandwidth + peak)


def _compute(load: Load, rates: Rates) -> float:
    return load.flops_per_parameter * load.parameters * load.tokens * load.micro_batches / rates.compute


def _transfers(load: Load, moved: Bytes | Mapping[Link, float], rates: Rates, *, together: bool) -> list[float]:
    """Seconds of each link. Up and down go at once, as on PCIe; a disk reads or writes."""
    seconds = {link: load.parameters * moved.get(link, 0) / rates.link(link) for link in LINKS}
    disk = seconds["read"] + seconds["write"]
    return [seconds["up"], seconds["down"], disk] if together else [sum(seconds.values())]
