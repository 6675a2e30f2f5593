"""What DeepSpeed keeps off the device, and what is to be said of how a recipe was priced."""

from functools import lru_cache

from . import deepspeed
from .algebra import Size
from .words import Words


@lru_cache(maxsize=1024)
def elsewhere(words: Words) -> dict[str, dict[str, Size]]:
    """Bytes by place (host, disk) and component, the same in every phase; nothing but under DeepSpeed."""
    return deepspeed.elsewhere(words) if words.deepspeed else {}


def notes(words: Words) -> list[str]:
    """How far the price of these words can be trusted, where no trace proves it."""
    return [f"DeepSpeed: {deepspeed.TOLERANCE_NOTE}"] if words.deepspeed else []
