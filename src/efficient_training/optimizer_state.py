"""The bytes of state that each optimizer keeps, exactly, by one word.

The formulas are read off the libraries' own code (torch 2.13, bitsandbytes 0.50, torchao 0.18), and a test compares
them with what a step leaves in memory. They need shapes and the width of an element only, so that a price can use them.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from .errors import UserError
from .recipe import Algorithm

Word = Algorithm
"""The word of an optimizer, as `Recipe.algorithm` has it."""
WORDS: tuple[Word, ...] = get_args(Word)
Shapes = Mapping[str, Sequence[int]]

MIN_QUANTIZED = 4096
"""Elements below which bitsandbytes (`min_8bit_size`) and torchao (`_new_buffer`) keep a tensor's state unquantized."""

MIN_PAGED = 100_000
"""Elements from which bitsandbytes' paged optimizers put state into paged memory (`get_state_buffer`)."""

STEP = 4
"""Bytes of the fp32 step counter that torch's AdamW and Adafactor and torchao's AdamW keep for each parameter.
It is on the host unless the implementation is fused. bitsandbytes counts in Python; Muon and our Lion do not count."""


@dataclass(frozen=True)
class StateBytes:
    """Bytes of optimizer state: `moments` (codes, numbers or factors), `scales` of blocks, `maps`, and `steps`."""

    moments: int = 0
    scales: int = 0
    maps: int = 0
    steps: int = 0

    @property
    def total(self) -> int:
        """All of it."""
        return self.moments + self.scales + self.maps + self.steps

    def __add__(self, other: "StateBytes") -> "StateBytes":
        return StateBytes(
            self.moments + other.moments,
            self.scales + other.scales,
            self.maps + other.maps,
            self.steps + other.steps,
        )


def state_bytes(word: Word, shapes: Shapes, itemsize: int = 4, full_precision: Collection[str] = ()) -> StateBytes:
    """Bytes that the optimizer `word` keeps for trained parameters of `shapes`, by name, `itemsize` bytes an element.

    For a parameter of n elements:

    - `adamw`: two numbers of the parameter's own width, 2 n itemsize (and `STEP`).
    - `adafactor` (torch's, no first moment): (r + c) itemsize for a matrix of r rows and c columns, n itemsize for a
      vector (and `STEP`).
    - `lion`: one number, n itemsize.
    - `muon`: n itemsize for the matrices that it takes (`muon_takes`), `adamw` for all others.
    - `bnb-adamw8bit`, paged or not: two codes, 2 n, and twice an fp32 magnitude for each started block of 256;
      `bnb-lion8bit` half of that. Below 4,096 elements, and for parameters in `full_precision`, fp32 numbers instead,
      whatever the parameter's width. One map of 1 KiB for each moment, for all parameters of the optimizer.
    - `torchao-adamw8bit`, `torchao-adamwfp8`: 2 n, and twice a scale for each block of 256. `torchao-adamw4bit`: n (two
      codes a byte), and scales for blocks of 128. As `adamw` below 4,096 elements and where the block does not divide
      n. Maps of 1 KiB (8 bits) or 64 bytes (4 bits) for each moment of each parameter: they are not shared.

    Raises `UserError` on an unknown word, and where `full_precision` is given for an optimizer that has no such option.
    """
    check_word(word, full_precision, shapes)
    each = (_of_one(word, name, tuple(shape), itemsize, name in full_precision) for name, shape in shapes.items())
    state = sum(each, StateBytes())
    shared = 1024 * _moments(word) if word.startswith("bnb") and state.scales else 0
    return state + StateBytes(maps=shared)


def muon_takes(name: str, shape: Sequence[int]) -> bool:
    """Whether Muon optimizes a parameter: a matrix of a hidden layer, no embedding and no head (`torch.optim.Muon`)."""
    return len(shape) == 2 and not any(part in name for part in ("embed", "lm_head", "wte", "wpe"))


def check_word(word: str, full_precision: Collection[str], shapes: Mapping[str, Any]) -> None:
    """Raise `UserError` on an unknown word or name, and where the optimizer cannot keep chosen state in 32 bits."""
    if word not in WORDS:
        raise UserError(f"unknown optimizer {word!r}; known: {', '.join(WORDS)}")
    if full_precision and not word.startswith("bnb"):
        raise UserError(f"optimizer {word}: only bitsandbytes can keep the state of chosen parameters in 32 bits")
    unknown = next((name for name in full_precision if name not in shapes), None)
    if unknown is not None:
        raise UserError(f"optimizer {word}: full_precision names {unknown!r}, which is no parameter")


def _of_one(word: Word, name: str, shape: tuple[int, ...], itemsize: int, full: bool) -> StateBytes:
    n = math.prod(shape)
    plain = StateBytes(moments=2 * n * itemsize, steps=STEP)
    if word == "muon":
        return StateBytes(moments=n * itemsize) if muon_takes(name, shape) else plain
    if word == "lion":
        return StateBytes(moments=n * itemsize)
    if word == "adafactor":
        factors = n // shape[-1] + n // shape[-2] if len(shape) > 1 else n
        return StateBytes(moments=factors * itemsize, steps=STEP)
    if word.startswith("bnb"):
        moments = _moments(word)
        if n < MIN_QUANTIZED or full:
            return StateBytes(moments=moments * n * 4)
        return StateBytes(moments=moments * n, scales=moments * 4 * math.ceil(n / 256))
    if word.startswith("torchao"):
        block = 128 if word == "torchao-adamw4bit" else 256
        if n < MIN_QUANTIZED or n % block:
            return plain
        codes, values = {"torchao-adamw8bit": (2 * n, 256), "torchao-adamw4bit": (n, 16)}.get(word, (2 * n, 0))
        return StateBytes(moments=codes, scales=2 * 4 * n // block, maps=2 * 4 * values, steps=STEP)
    return plain


def _moments(word: str) -> int:
    return 1 if word == "bnb-lion8bit" else 2


def held_bytes(optimizer: Any) -> int:
    """Bytes of the tensors in an optimizer's state, each storage once, those inside of tensor subclasses too."""
    from .measure.parts import plain_tensors  # torch, without which all else here does

    storages = (tensor.untyped_storage() for tensor in plain_tensors(list(optimizer.state.values())))
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())
