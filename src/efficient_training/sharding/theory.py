"""What each rank holds of a model's states, by formula, to the byte.

With Ψ parameters, AdamW and everything in fp32, a rank alone holds 4Ψ of weights, 4Ψ of gradients and 8Ψ of moments;
with 16-bit weights and gradients and an fp32 master weight, 2Ψ + 2Ψ + 12Ψ. ZeRO divides the last term by the ranks N,
then the last two, then all three (Rajbhandari et al. 2020, https://arxiv.org/abs/1910.02054, section 5): `ideal_bytes`.

Libraries cut along other lines, and pad. `state_bytes` follows them: FSDP2 cuts each parameter's first dimension into
N chunks of equal size (`FSDPParam._init_sharded_param`); FSDP1 cuts each unit's flat parameter; DeepSpeed cuts all
parameters laid end to end (stages 1 and 2, `DeepSpeedZeroOptimizer`) or each by itself (stage 3, `_partition_param`);
ZeroRedundancyOptimizer gives whole parameters to ranks (`ownership.owned_by_rank`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import UserError
from ..ownership import owned_by_rank
from ..recipe import FSDP
from .words import check_strategy

STEP_BYTES = 4
"""AdamW counts its steps in one fp32 number a parameter (and so for each of its flat parameters)."""

DEEPSPEED_ALIGNMENT = 2
"""Elements: stages 1 and 2 pad the flat weights to a multiple of this times N (`nccl_start_alignment_factor`)."""


@dataclass(frozen=True)
class StateDtypes:
    """Bytes a number of each state: `moment` is each of Adam's two, `master` 0 where weights have no second copy."""

    weight: int = 4
    gradient: int = 4
    moment: int = 4
    master: int = 0

    @property
    def replicated(self) -> int:
        """Bytes a parameter where one rank holds everything: 16 in fp32, and 16 in 16 bit with a master weight."""
        return self.weight + self.gradient + 2 * self.moment + self.master


FP32 = StateDtypes()
MIXED_WITH_MASTER = StateDtypes(weight=2, gradient=2, master=4)
"""16-bit weights and gradients, fp32 moments and master weight: the ZeRO paper's K = 12."""
BF16 = StateDtypes(weight=2, gradient=2, moment=2)


def ideal_bytes(stage: int, parameters: int, ranks: int, dtypes: StateDtypes = MIXED_WITH_MASTER) -> float:
    """Bytes of all states on one rank under ZeRO `stage` 0 to 3, with even parts and no padding.

    Raises `UserError` on any other stage.
    """
    if stage not in (0, 1, 2, 3):
        raise UserError(f"sharding: a ZeRO stage is 0, 1, 2 or 3, got {stage!r}")
    state = 2 * dtypes.moment + dtypes.master
    shares = (dtypes.weight, 3), (dtypes.gradient, 2), (state, 1)
    return float(sum(size * parameters / (ranks if stage >= first else 1) for size, first in shares))


def state_bytes(
    strategy: str,
    units: Sequence[Sequence[tuple[int, ...]]],
    ranks: int,
    rank: int,
    dtypes: StateDtypes = FP32,
    *,
    shard_ranks: int | None = None,
) -> dict[str, int]:
    """Bytes of each state on `rank` of `ranks`, after backward and before the optimizer step, under AdamW.

    `units` are the shapes of the parameters, unit by unit as FSDP wraps them; for the other strategies only their
    order counts, and it must be that of `model.parameters()`. `shard_ranks` is the size of hsdp's groups. For DeepSpeed
    `dtypes.master` must be 4, which is what it keeps, in fp32 too. Raises `UserError` on an unknown strategy or a rank
    out of range.
    """
    check_strategy(strategy)
    if not 0 <= rank < ranks:
        raise UserError(f"sharding: rank must be from 0 to {ranks - 1}, got {rank}")
    if strategy.startswith("fsdp1"):
        return _fsdp1(units, 1 if strategy == "fsdp1-no-shard" else ranks, dtypes)
    if strategy in FSDP:
        part = (shard_ranks or 2) if strategy == "hsdp" else ranks
        return _fsdp(units, part, rank % part, dtypes)
    shapes = [shape for unit in units for shape in unit]
    if strategy in ("deepspeed-1", "deepspeed-2"):
        return _deepspeed_flat(shapes, ranks, rank, dtypes)
    if strategy == "deepspeed-3":
        return _deepspeed_each(shapes, ranks, dtypes)
    elements = [math.prod(shape) for shape in shapes]
    total = sum(elements)
    mine = elements if strategy == "ddp" else [elements[one] for one in owned_by_rank(elements, ranks)[rank]]
    return _states(total * dtypes.weight, total * dtypes.gradient, sum(mine), len(mine), dtypes, 0)


def shard_rows(rows: int, ranks: int, rank: int) -> tuple[int, int]:
    """Rows of a first dimension that `rank` owns, and rows that it allocates for them: ceil(rows / ranks)."""
    chunk = math.ceil(rows / ranks)
    return max(0, min(rows - rank * chunk, chunk)), chunk


def _states(
    weights: int, gradients: int, owned: int, tensors: int, dtypes: StateDtypes, master_numbers: int
) -> dict[str, int]:
    return {
        "weights": weights,
        "gradients": gradients,
        "optimizer state": owned * 2 * dtypes.moment + tensors * STEP_BYTES,
        "master weights": master_numbers * dtypes.master,
    }


def _fsdp(units: Sequence[Sequence[tuple[int, ...]]], part: int, index: int, dtypes: StateDtypes) -> dict[str, int]:
    owned = padded = tensors = 0
    for unit in units:
        for rows, *rest in unit:
            mine, chunk = shard_rows(rows, part, index)
            owned += mine * math.prod(rest)
            padded += chunk * math.prod(rest)
            tensors += 1
    return _states(padded * dtypes.weight, padded * dtypes.gradient, owned, tensors, dtypes, 0)


def _fsdp1(units: Sequence[Sequence[tuple[int, ...]]], ranks: int, dtypes: StateDtypes) -> dict[str, int]:
    padded = sum(math.ceil(sum(math.prod(shape) for shape in unit) / ranks) for unit in units)
    return _states(padded * dtypes.weight, padded * dtypes.gradient, padded, len(units), dtypes, 0)


def _deepspeed_flat(shapes: Sequence[tuple[int, ...]], ranks: int, rank: int, dtypes: StateDtypes) -> dict[str, int]:
    sizes = [math.prod(shape) for shape in shapes]
    total = sum(sizes)
    part = math.ceil(total / (DEEPSPEED_ALIGNMENT * ranks)) * DEEPSPEED_ALIGNMENT
    # Gradients are kept for each parameter that touches the part, whole, and with zeros for the padding at the end.
    start, end = rank * part, (rank + 1) * part
    gradients = position = 0
    for size in sizes:
        if position < end and position + size > start:
            gradients += size
        position += size
    gradients += min(part, max(0, end - total))
    return _states(part * ranks * dtypes.weight, gradients * dtypes.gradient, part, 1, dtypes, part)


def _deepspeed_each(shapes: Sequence[tuple[int, ...]], ranks: int, dtypes: StateDtypes) -> dict[str, int]:
    part = sum(math.ceil(math.prod(shape) / ranks) for shape in shapes)
    return _states(part * dtypes.weight, part * dtypes.gradient, part, 1, dtypes, part)
