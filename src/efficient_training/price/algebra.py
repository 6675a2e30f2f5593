"""Sizes in symbols: polynomials with whole coefficients over named sizes, such as `4 * batch * sequence * hidden`."""

from collections.abc import Iterable, Mapping
from typing import Any

Monomial = tuple[str, ...]
"""The names of one product, sorted; a name stands twice for its square. The empty product is 1."""


class Size:
    """A polynomial over named sizes; it adds, subtracts and multiplies with others and with ints, and never changes."""

    __slots__ = ("terms",)

    def __init__(self, terms: Mapping[Monomial, int]) -> None:
        self.terms = {monomial: factor for monomial, factor in terms.items() if factor}

    @staticmethod
    def named(name: str) -> "Size":
        """The size called `name`."""
        return Size({(name,): 1})

    @staticmethod
    def of(value: "Size | int") -> "Size":
        """`value` as a polynomial."""
        return value if isinstance(value, Size) else Size({(): value})

    def __add__(self, other: "Size | int") -> "Size":
        terms = dict(self.terms)
        for monomial, factor in Size.of(other).terms.items():
            terms[monomial] = terms.get(monomial, 0) + factor
        return Size(terms)

    __radd__ = __add__

    def __neg__(self) -> "Size":
        return Size({monomial: -factor for monomial, factor in self.terms.items()})

    def __sub__(self, other: "Size | int") -> "Size":
        return self + -Size.of(other)

    def __rsub__(self, other: int) -> "Size":
        return Size.of(other) - self

    def __mul__(self, other: "Size | int") -> "Size":
        if isinstance(other, int):
            return Size({monomial: factor * other for monomial, factor in self.terms.items()})
        terms: dict[Monomial, int] = {}
        for left, a in self.terms.items():
            for right, b in other.terms.items():
                monomial = tuple(sorted(left + right))
                terms[monomial] = terms.get(monomial, 0) + a * b
        return Size(terms)

    __rmul__ = __mul__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Size) and self.terms == other.terms

    def __hash__(self) -> int:
        return hash(frozenset(self.terms.items()))

    def __bool__(self) -> bool:
        return bool(self.terms)

    def __repr__(self) -> str:
        words = ("*".join((str(factor), *monomial)) for monomial, factor in self.terms.items())
        return " + ".join(words) or "0"


ONE = Size.of(1)
ZERO = Size.of(0)


class Evaluator:
    """Evaluates sizes over values of the names: ints, arrays, or anything else that adds and multiplies."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._products: dict[Monomial, Any] = {(): 1, **{(name,): value for name, value in values.items()}}

    def __call__(self, size: Size) -> Any:
        """The value of `size`; each product of names is worked out once."""
        total: Any = 0
        for monomial, factor in size.terms.items():
            product = self._product(monomial)
            total = total + (product if factor == 1 else product * factor)
        return total

    def _product(self, monomial: Monomial) -> Any:
        if monomial not in self._products:
            self._products[monomial] = self._product(monomial[:-1]) * self._product(monomial[-1:])
        return self._products[monomial]


def total(sizes: Iterable[Size]) -> Size:
    """The sum of `sizes`."""
    terms: dict[Monomial, int] = {}
    for size in sizes:
        for monomial, factor in size.terms.items():
            terms[monomial] = terms.get(monomial, 0) + factor
    return Size(terms)
