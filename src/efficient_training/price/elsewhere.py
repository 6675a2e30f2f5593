"""What DeepSpeed keeps off the device, and what is to be said of how a recipe was priced."""

from functools import lru_cache

from . import deepspeed
from .algebra import Size
from .words import Words

ALGORITHM_NOTES = {
    "torchao": "torchao's step is taken eagerly, as run and trace do it; compiled, it makes fewer temporaries",
    "bnb-paged": "paged state counts as the device's, where it is while it fits; the driver may move it to the host",
}
"""What is to be said of optimizers, by the start of their words."""


@lru_cache(maxsize=1024)
def elsewhere(words: Words) -> dict[str, dict[str, Size]]:
    """Bytes by place (host, disk) and component, the same in every phase; nothing but under DeepSpeed."""
    return deepspeed.elsewhere(words) if words.deepspeed else {}


def notes(words: Words) -> list[str]:
    """How far the price of these words can be trusted, where no trace proves it, and what it leaves open."""
    out = [f"DeepSpeed: {deepspeed.TOLERANCE_NOTE}"] if words.deepspeed else []
    return out + [note for start, note in ALGORITHM_NOTES.items() if words.algorithm.startswith(start)]
