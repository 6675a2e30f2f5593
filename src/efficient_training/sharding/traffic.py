"""What a step sends, by formula, and how long that takes on a link.

On a ring of N ranks an all-gather or a reduce-scatter of S bytes has each rank send (N - 1)/N of S, and an all-reduce,
which is both, twice that (Patarasuk and Yuan 2009, https://doi.org/10.1016/j.jpdc.2008.09.002). It is usual to leave
the factor (N - 1)/N out and to speak of 2Ψ for an all-reduce of Ψ numbers.
"""

from dataclasses import dataclass

from ..errors import UserError
from .words import check_strategy


@dataclass(frozen=True)
class Traffic:
    """Bytes of whole tensors in one optimizer step, by collective."""

    all_reduce: float = 0
    all_gather: float = 0
    reduce_scatter: float = 0
    broadcast: float = 0

    def sent(self, ranks: int) -> float:
        """Bytes that each rank of a ring of `ranks` sends (for a broadcast: the mean over ranks)."""
        return (2 * self.all_reduce + self.all_gather + self.reduce_scatter + self.broadcast) * (ranks - 1) / ranks


def step_traffic(
    strategy: str,
    parameters: int,
    *,
    weight: int = 4,
    gradient: int = 4,
    micro_batches: int = 1,
    reduce_each: bool = False,
) -> Traffic:
    """What an optimizer step of `micro_batches` moves, on each ring, for `parameters` numbers, padding left out.

    `weight` and `gradient` are bytes a number as sent: FSDP2's `param_dtype` and `reduce_dtype`. `reduce_each` reduces
    gradients after every micro-batch, not after the last alone. DeepSpeed's as it is by default in 0.19: stages 1 and 2
    all-reduce gradients and gather weights; stage 3 as if every unit were released after its forward. Raises
    `UserError` on an unknown strategy, and on `hsdp`, whose two kinds of ring differ (see `hybrid_traffic`).
    """
    check_strategy(strategy)
    if strategy == "hsdp":
        raise UserError("sharding: hsdp has two kinds of ring; use hybrid_traffic")
    weights, gradients = parameters * weight, parameters * gradient
    reductions = micro_batches if reduce_each else 1
    if strategy in ("ddp", "fsdp1-no-shard"):
        return Traffic(all_reduce=gradients * reductions)
    if strategy == "zero1":
        return Traffic(all_reduce=gradients * reductions, broadcast=weights)
    if strategy in ("deepspeed-1", "deepspeed-2"):
        return Traffic(all_reduce=gradients * reductions, all_gather=weights)
    gathers = 1 if strategy in ("fsdp-no-reshard", "fsdp1-grad-op") else 2
    return Traffic(all_gather=weights * gathers * micro_batches, reduce_scatter=gradients * reductions)


def hybrid_traffic(parameters: int, shard_ranks: int, *, weight: int = 4, gradient: int = 4) -> tuple[Traffic, Traffic]:
    """What hsdp moves within a group of `shard_ranks`, and between groups, where only the own part is reduced."""
    weights, gradients = parameters * weight, parameters * gradient
    return Traffic(all_gather=2 * weights, reduce_scatter=gradients), Traffic(all_reduce=gradients / shard_ranks)


@dataclass(frozen=True)
class Link:
    """What joins two ranks: bytes a second in each direction, and seconds that a message takes however short it is."""

    bandwidth: float
    latency: float = 0.0


def ring_seconds(traffic: Traffic, calls: int, ranks: int, link: Link) -> float:
    """Seconds for `traffic` in `calls` collectives: bytes over bandwidth, and N - 1 messages' latency a call.

    An all-reduce counts as two calls, since it goes around twice.
    """
    return traffic.sent(ranks) / link.bandwidth + calls * (ranks - 1) * link.latency


def hiding_tokens(
    strategy: str, ranks: int, rate: float, link: Link, *, weight: int = 2, gradient: int = 2, micro_batches: int = 1
) -> float:
    """Tokens a rank must process in a step for computing to take as long as sending, whatever the model's size.

    A step computes 6 operations a parameter and token at `rate` operations a second, and sends what `step_traffic`
    says; parameters cancel. With fewer tokens than this, perfect overlap cannot hide the communication.
    """
    traffic = step_traffic(strategy, 1, weight=weight, gradient=gradient, micro_batches=micro_batches)
    return traffic.sent(ranks) / link.bandwidth * rate / 6
