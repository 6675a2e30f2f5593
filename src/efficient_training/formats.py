"""Binary floating-point formats, bit by bit: what a pattern of bits stands for, and how far apart neighbors are.

A format has one sign bit, `exponent_bits` and `mantissa_bits`. With bias b = 2^(exponent_bits - 1) - 1, a pattern with
sign s, stored exponent E and stored mantissa M stands for

    (-1)^s * 2^(E - b) * (1 + M / 2^mantissa_bits)    where E > 0   (normal)
    (-1)^s * 2^(1 - b) * M / 2^mantissa_bits          where E = 0   (subnormal, and zero)

and, in the formats that follow IEEE 754, the largest E is kept for infinity (M = 0) and NaN (M > 0). E4M3 keeps only
the pattern of all ones for NaN and has no infinity, so that its range reaches one binade further (arXiv:2209.05433,
section 3). Everything here is exact: all values of these formats are values of Python's `float`.
"""

import math
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class FloatFormat:
    """One format. `ieee_specials` is false where the largest stored exponent holds numbers too, as in E4M3."""

    name: str
    exponent_bits: int
    mantissa_bits: int
    ieee_specials: bool = True

    @property
    def bits(self) -> int:
        """Bits of one number that carry meaning (19 for tf32, which is stored in 32)."""
        return 1 + self.exponent_bits + self.mantissa_bits

    @property
    def bias(self) -> int:
        """What is subtracted from the stored exponent."""
        return (1 << (self.exponent_bits - 1)) - 1

    @property
    def epsilon(self) -> float:
        """Distance from 1 to the next larger number."""
        return math.ldexp(1.0, -self.mantissa_bits)

    @property
    def unit_roundoff(self) -> float:
        """Largest relative error of rounding a number in the normal range to nearest: half of epsilon."""
        return self.epsilon / 2

    @property
    def max(self) -> float:
        """Largest finite number."""
        all_ones = (1 << (self.bits - 1)) - 1
        # With IEEE specials the pattern below "infinity"; else the one below the only NaN.
        return self.decode(all_ones - (2**self.mantissa_bits if self.ieee_specials else 1))

    @property
    def smallest_normal(self) -> float:
        """Smallest positive number with full precision."""
        return math.ldexp(1.0, 1 - self.bias)

    @property
    def smallest_subnormal(self) -> float:
        """Smallest positive number; also the spacing of all subnormal numbers."""
        return self.smallest_normal * self.epsilon

    def fields(self, pattern: int) -> tuple[int, int, int]:
        """Sign, stored exponent and stored mantissa of a bit pattern; `ValueError` where it has too many bits."""
        if not 0 <= pattern < 2**self.bits:
            raise ValueError(f"{self.name} has {self.bits} bits; {pattern:#x} does not fit")
        return (
            pattern >> (self.bits - 1),
            (pattern >> self.mantissa_bits) & (2**self.exponent_bits - 1),
            pattern & (2**self.mantissa_bits - 1),
        )

    def decode(self, pattern: int) -> float:
        """The number that a bit pattern stands for; infinity and NaN included."""
        sign, exponent, mantissa = self.fields(pattern)
        top = exponent == 2**self.exponent_bits - 1
        if top and self.ieee_specials:
            magnitude = math.nan if mantissa else math.inf
        elif top and mantissa == 2**self.mantissa_bits - 1:
            magnitude = math.nan
        elif exponent:
            magnitude = math.ldexp(1 + mantissa * self.epsilon, exponent - self.bias)
        else:
            magnitude = mantissa * self.smallest_subnormal
        return -magnitude if sign else magnitude

    def spacing(self, x: float) -> float:
        """Distance from |x| to the next larger number of the format's grid: the unit in the last place at x.

        Raises `ValueError` where |x| is beyond the largest finite number, or NaN.
        """
        if not abs(x) <= self.max:
            raise ValueError(f"{x} is not within the range of {self.name}, whose largest number is {self.max}")
        magnitude = max(abs(x), self.smallest_normal)
        return math.ldexp(self.epsilon, math.frexp(magnitude)[1] - 1)


FORMATS: Final = {
    item.name: item
    for item in (
        FloatFormat("fp32", 8, 23),
        FloatFormat("tf32", 8, 10),
        FloatFormat("bf16", 8, 7),
        FloatFormat("fp16", 5, 10),
        FloatFormat("e5m2", 5, 2),
        FloatFormat("e4m3", 4, 3, ieee_specials=False),
    )
}
"""The formats of training, by name, from the widest range to the narrowest."""
