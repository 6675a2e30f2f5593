"""The bytes of frozen weights in symbols, as they are or in NF4."""

from .adapters import KINDS, compute_itemsize
from .algebra import Size, total
from .operators import FLOAT
from .parameters import Tables, elements
from .sizes import FURTHER_BLOCKS
from .words import Words

TABLE_BYTES, DOUBLE_BYTES = 16 * FLOAT, 256 * FLOAT + FLOAT
"""Of each NF4 tensor: its table; and under double quantization that of the scales, and their mean."""


def frozen_bytes(words: Words, frozen: Tables) -> Size:
    """Bytes of all weights that are frozen: in NF4 those of linear layers, their biases in the compute dtype."""
    if words.quantization == "none":
        return elements(frozen) * words.itemsize
    outer = total(size for _, size in frozen.before + frozen.after) * words.itemsize
    return outer + total(_block_bytes(words, name, size) for name, size in frozen.block) * (FURTHER_BLOCKS + 1)


def _block_bytes(words: Words, name: str, numel: Size) -> Size:
    layer, _, part = name.partition(".")
    if layer not in KINDS:
        return numel * words.itemsize
    if part == "bias":
        return numel * compute_itemsize(words)
    return _nf4_bytes(KINDS[layer], words.quantization == "nf4-double")


def _nf4_bytes(kind: str, double: bool) -> Size:
    """Bytes of an NF4 tensor, as `nf4.nf4_bytes` has them, by the names of `adapted_sizes`."""
    scales = Size.named(f"scales_{kind}")
    held = Size.named(f"codes_{kind}") + TABLE_BYTES
    return held + (scales + Size.named(f"outer_{kind}") * FLOAT + DOUBLE_BYTES if double else scales * FLOAT)
