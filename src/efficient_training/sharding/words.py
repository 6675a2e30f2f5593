"""The words for strategies, which other modules share without importing torch."""

from typing import Literal, get_args

from ..errors import UserError

Strategy = Literal[
    "ddp",
    "zero1",
    "fsdp",
    "fsdp-no-reshard",
    "hsdp",
    "fsdp1-full",
    "fsdp1-grad-op",
    "fsdp1-no-shard",
    "deepspeed-1",
    "deepspeed-2",
    "deepspeed-3",
]
"""How the states are divided, and by whom:

- `ddp`: every rank holds everything (`DistributedDataParallel`).
- `zero1`: DDP, and each rank runs the optimizer for some of the parameters (`ZeroRedundancyOptimizer`).
- `fsdp`: FSDP2 (`fully_shard`), weights gathered again for backward; `fsdp-no-reshard`: kept from forward on.
- `hsdp`: FSDP2 within groups of ranks, replicated between them.
- `fsdp1-full`, `fsdp1-grad-op`, `fsdp1-no-shard`: FSDP1's FULL_SHARD, SHARD_GRAD_OP and NO_SHARD.
- `deepspeed-1`, `deepspeed-2`, `deepspeed-3`: DeepSpeed's ZeRO stages.
"""

STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)


def check_strategy(strategy: str) -> None:
    """Raise `UserError` where `strategy` is none of `STRATEGIES`."""
    if strategy not in STRATEGIES:
        raise UserError(f"sharding: unknown strategy {strategy!r}; known: {', '.join(STRATEGIES)}")
