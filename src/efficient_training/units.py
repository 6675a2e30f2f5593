"""The units that a record may carry, and conversion between those of one dimension.

The table is data (`units.json`), because the Lua filter that prints values in the book reads the same one.
GiB is 2^30 bytes and GB is 10^9, as IEC 80000-13 has it.
"""

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files


@dataclass(frozen=True)
class Unit:
    """One unit: its dimension, its size in the dimension's base unit, and how it is printed after a number."""

    name: str
    dimension: str
    factor: float
    label: str


@cache
def units() -> dict[str, Unit]:
    """All units by name."""
    table = json.loads(files(__package__).joinpath("units.json").read_text(encoding="utf-8"))
    return {name: Unit(name, **fields) for name, fields in table.items()}


def unit(name: str) -> Unit:
    """The unit called `name`; raises `ValueError`, listing the known ones, where there is none."""
    try:
        return units()[name]
    except KeyError:
        raise ValueError(f"unknown unit {name!r}; known units: {', '.join(units())}") from None


def convert(value: float, from_unit: str, to_unit: str) -> float:
    """`value` of `from_unit` in `to_unit`; raises `ValueError` where their dimensions differ."""
    source, target = unit(from_unit), unit(to_unit)
    if source.dimension != target.dimension:
        raise ValueError(f"cannot convert {from_unit} ({source.dimension}) to {to_unit} ({target.dimension})")
    return value * source.factor / target.factor if source != target else value
