"""Peaks that others have published of FSDP2 on GPUs, and the price of the same recipes.

All are runs of torchtitan: fp32 shards, bf16 in use, gradients reduced in fp32, fused AdamW, cross-entropy on fp32
logits, and its op policy of selective checkpointing (`selective-half`), unless a row says otherwise. They print the
memory that the allocator reserves: what is allocated, what FSDP2's streams cannot lend each other
(`price.reserved_at_least`), and fragmentation, which no price knows.
"""

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from .ledger import Ledger
from .models import presets
from .price import price, reserved_at_least
from .recipe import Recipe
from .workload import Workload

COMMON: dict[str, Any] = {
    "precision": "bf16-mixed",
    "checkpointing": "selective-half",
    "optimizer": "fused",
    "loss": "upcast",
    "sharding": "fsdp",
}


@dataclass(frozen=True)
class PublishedRow:
    """One published peak: `gib` of `metric` memory, the largest over ranks; `differs`: what the price leaves out."""

    id: str
    source: str
    hardware: str
    workload: Workload
    recipe: Recipe
    gib: float
    metric: str
    differs: str

    @property
    def priced(self) -> Ledger:
        """The price of the row's recipe."""
        return price(self.workload, self.recipe)

    @property
    def reserved_at_least(self) -> int:
        """Bytes that the allocator has to reserve for the row's recipe, before fragmentation."""
        return reserved_at_least(self.workload, self.recipe)

    def error(self, priced: int) -> float:
        """How far `priced` bytes are from the published peak, as a fraction of this."""
        return priced / 2**30 / self.gib - 1


@cache
def published_rows() -> tuple[PublishedRow, ...]:
    """The rows in `published.json`: all of FSDP2 that a recipe can express, in whose order they are shown."""
    table = json.loads(files(__package__).joinpath("published.json").read_text(encoding="utf-8"))
    return tuple(_row(name, entry) for name, entry in table.items())


def _row(name: str, entry: dict[str, Any]) -> PublishedRow:
    recipe = Recipe(**(COMMON | entry["recipe"]))
    tokens = entry["sequence_length"] * recipe.micro_batch * recipe.ranks
    workload = Workload(presets()[entry["model"]], entry["sequence_length"], tokens)
    shown = (entry[key] for key in ("gib", "metric", "differs"))
    return PublishedRow(name, entry["source"], entry["hardware"], workload, recipe, *shown)
