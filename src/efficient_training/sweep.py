"""The ledger of a recipe at every micro-batch size, from two traces: bytes at each instant are affine in its size."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from .errors import UserError
from .ledger import PHASES, Ledger
from .measure.samples import Sample
from .models import ModelShape
from .recipe import Recipe
from .trace import Timeline, affine, deep_timeline, ledger_of
from .workload import Workload

FEW, MORE = 2, 3
"""Sequences of the two traces; a single one is left out, since dimensions of one take short cuts."""


@dataclass(frozen=True)
class Sweep:
    """The step of one recipe at one sequence length, for any micro-batch of two sequences or more."""

    few: Mapping[str, list[Sample]]
    more: Mapping[str, list[Sample]]

    def ledger(self, micro_batch: int) -> Ledger:
        """The traced ledger at `micro_batch` sequences, one micro-batch a step; raises `UserError` below two."""
        if micro_batch < FEW:
            raise UserError(f"sweep: micro_batch must be at least {FEW}, got {micro_batch}")
        timeline: Timeline = {
            name: [affine(a, b, micro_batch - FEW) for a, b in zip(self.few[name], self.more[name], strict=True)]
            for name in PHASES
        }
        return ledger_of(timeline, "traced")

    def crossing(self, most: int = 2**20) -> int | None:
        """The smallest micro-batch at which the optimizer step no longer sets the peak; `None` up to `most`."""
        low, high = FEW, most
        if self.ledger(high).peak_phase() == "optimizer step":
            return None
        while low < high:
            middle = (low + high) // 2
            if self.ledger(middle).peak_phase() == "optimizer step":
                low = middle + 1
            else:
                high = middle
        return low

    def largest(self, capacity: float) -> int:
        """The largest power of two of sequences whose peak is within `capacity` bytes; 0 where not even two are."""
        size = FEW
        while self.ledger(size).peak() <= capacity:
            size *= 2
        return size // 2 if size > FEW else 0


def sweep(shape: ModelShape, sequence_length: int, recipe: Recipe) -> Sweep:
    """Trace `recipe` (its `micro_batch` aside) at two sizes.

    Raises `UserError` for a chunked loss, whose number of chunks, and so of instants, changes with the micro-batch.
    """
    few, more = (
        deep_timeline(Workload(shape, sequence_length, size * sequence_length), replace(recipe, micro_batch=size))
        for size in (FEW, MORE)
    )
    for name in PHASES:
        if [sample.operator for sample in few[name]] != [sample.operator for sample in more[name]]:
            raise UserError(
                f"sweep: with loss {recipe.loss} the {name} runs other operators at another micro-batch size"
            )
    return Sweep(few, more)
