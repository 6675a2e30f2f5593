"""One rank of several, traced by itself: torch's fake process group has ranks, but its collectives move nothing."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from .errors import UserError
from .models import ModelShape
from .ownership import heaviest_rank
from .recipe import FSDP, Recipe

MOST_RANKS, MOST_SHARDS = 2**16, 2**11
"""Those that are traced: torch lists all ranks, and FSDP2 cuts each parameter into a shard for each."""


@contextmanager
def one_of(recipe: Recipe, shape: ModelShape) -> Iterator[None]:
    """Inside the block, this process is one of the recipe's ranks: the one that holds most.

    Under FSDP2 that is the first, as shards are cut from the start, and the last ones may be smaller; under ZeRO-1 the
    one with the most optimizer state. Raises `UserError` in a process that has a process group already, and for
    more than `MOST_RANKS` ranks, or `MOST_SHARDS` shards.
    """
    if recipe.sharding == "none":
        yield
        return
    shards = recipe.shards if recipe.sharding in FSDP else 1
    for found, most, what in ((recipe.ranks, MOST_RANKS, "ranks"), (shards, MOST_SHARDS, "shards")):
        if found > most:
            raise UserError(f"trace: {found} {what} are more than the {most} that are traced; price them instead")
    if dist.is_initialized():
        raise UserError("trace: this process belongs to a process group already; trace in a process of its own")
    rank = 0
    if recipe.sharding == "zero1":
        from .price.parameters import elements_of

        rank = heaviest_rank(elements_of(shape), recipe.ranks)
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=recipe.ranks)
    try:
        # After the first step DDP puts gradients into buckets anew, in the order in which they came, for which it sends
        # values around, that fake tensors do not have. All buckets together stay as large.
        with patch("torch.distributed.Reducer._rebuild_buckets", lambda reducer: False):
            yield
    finally:
        dist.destroy_process_group()
