"""What optimizers keep, in bytes, and what of a parameter's shape their steps depend on, as named sizes.

Whether a parameter is large enough to be quantized, and how many blocks it has, are no polynomials of a model's sizes.
So they are worked out for each parameter of `parameters.trained`, as `optimizer_state.state_bytes` has them, and go
into the step's formulas by name.
"""

from collections.abc import Mapping
from typing import Any

from ..optimizer_state import MIN_QUANTIZED, STEP
from .adapters import sides_of
from .algebra import ONE, Evaluator, Size
from .ops import minimum, where
from .parameters import dimensions, trained
from .sizes import FFN, HEAD_DIM, HIDDEN, KV, POSITIONS, RANK, VOCABULARY, Q
from .words import Words

STATE = Size.named("state")
"""Bytes of optimizer state, of all parameters."""

FLOAT, MAP_8BIT, MAP_4BIT = 4, 1024, 64
"""Bytes of an fp32 number, and of the maps of 256 and of 16 of them."""

ROWS: Mapping[str, Size] = {
    "vocabulary": VOCABULARY, "positions": POSITIONS, "hidden": HIDDEN, "three_hidden": 3 * HIDDEN, "q": Q, "kv": KV,
    "head_dim": HEAD_DIM, "ffn": FFN,
}  # fmt: skip


def quantized(name: str) -> Size:
    """1 where a parameter's state is quantized, else 0."""
    return Size.named(f"quantized_{name}")


def plain(name: str) -> Size:
    """1 where it is not, else 0."""
    return Size.named(f"plain_{name}")


def blocks(name: str) -> Size:
    """Whole blocks of a parameter's state."""
    return Size.named(f"blocks_{name}")


def smaller_side(name: str) -> Size:
    """The smaller of a matrix's rows and columns."""
    return Size.named(f"smaller_{name}")


def sides(name: str, family: str) -> tuple[Size, Size] | None:
    """Rows and columns of a parameter that is a matrix."""
    layer, _, part = name.partition(".")
    if part in ("A", "B"):
        inputs, outputs = sides_of(layer, family)
        return (RANK, inputs) if part == "A" else (outputs, RANK)
    if part == "ia3":
        inputs, outputs = sides_of(layer, family)
        return (ONE, inputs) if layer == "down" else (outputs, ONE)
    dimension, rest = dimensions(name, family == "gpt2")
    return None if rest == ONE else (ROWS[dimension], rest)


def muon_takes(name: str, family: str) -> bool:
    """Whether Muon optimizes a parameter: a matrix of a block (`optimizer_state.muon_takes`)."""
    return name not in ("embedding", "head", "positions") and sides(name, family) is not None


def block_size(algorithm: str) -> int:
    """Elements that share a scale, in bitsandbytes and in torchao."""
    return 128 if algorithm == "torchao-adamw4bit" else 256


def state_sizes(words: Words, sizes: Mapping[str, Any]) -> dict[str, Any]:
    """`sizes` with those of this module: of ints, arrays or expressions."""
    value, out = Evaluator(sizes), dict(sizes)
    before, block, after = trained(words)
    total: Any = 0
    any_quantized: Any = 0
    for table, times in ((before + after, 1), (block, sizes["further_blocks"] + 1)):
        for name, size in table:
            n = value(size)
            coded, started, state = _of_one(words, name, n, value)
            out[f"quantized_{name}"], out[f"plain_{name}"], out[f"blocks_{name}"] = coded, 1 - coded, started
            total = total + state * times
            any_quantized = where(coded > 0, 1, any_quantized)
            if pair := sides(name, words.family):
                out[f"smaller_{name}"] = minimum(value(pair[0]), value(pair[1]))
    if words.algorithm.startswith("bnb") and not words.step_in_backward:
        total = total + any_quantized * (_moments(words) * MAP_8BIT)
    return {**out, "state": total}


def _of_one(words: Words, name: str, n: Any, value: Evaluator) -> tuple[Any, Any, Any]:
    """Whether a parameter of `n` elements is quantized, its whole blocks, and the bytes of its state."""
    algorithm, itemsize, moments = words.algorithm, words.state_itemsize, _moments(words)
    block = block_size(algorithm)
    plain, started = 2 * itemsize * n + STEP, n // block
    large = where(n > MIN_QUANTIZED - 1, 1, 0)
    if algorithm == "lion" or (algorithm == "muon" and muon_takes(name, words.family)):
        return 0 * n, started, itemsize * n
    if algorithm == "adafactor":
        pair = sides(name, words.family)
        return 0 * n, started, itemsize * (value(pair[0] + pair[1]) if pair else n) + STEP
    if algorithm.startswith("bnb"):
        own = moments * MAP_8BIT if words.step_in_backward else 0
        codes = moments * n + moments * FLOAT * ((n + block - 1) // block) + own
        return large, started, where(large > 0, codes, moments * FLOAT * n)
    if algorithm.startswith("torchao"):
        coded = where(n - started * block > 0, 0, large)
        bits, maps = {"torchao-adamw4bit": (n, 2 * MAP_4BIT), "torchao-adamw8bit": (2 * n, 2 * MAP_8BIT)}.get(
            algorithm, (2 * n, 0)
        )
        return coded, started, where(coded > 0, bits + 2 * FLOAT * started + maps + STEP, plain)
    return 0 * n, started, plain


def _moments(words: Words) -> int:
    return 1 if words.algorithm == "bnb-lion8bit" else 2
