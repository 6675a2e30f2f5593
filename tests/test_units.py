import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import efficient_training
from efficient_training.units import convert, unit, units

NAMES = sorted(units())
PAIRS = [(a, b) for a in NAMES for b in NAMES if units()[a].dimension == units()[b].dimension]


def test_binary_and_decimal_prefixes_differ() -> None:
    assert convert(1, "GiB", "B") == 2**30
    assert convert(1, "GB", "B") == 10**9
    assert convert(3, "GiB", "MiB") == 3072
    assert convert(0.25, "fraction", "percent") == pytest.approx(25)


def test_unknown_units_and_other_dimensions_are_refused() -> None:
    with pytest.raises(ValueError, match=r"unknown unit 'Gib'; known units: B, kB"):
        unit("Gib")
    with pytest.raises(ValueError, match=r"cannot convert GiB \(bytes\) to s \(time\)"):
        convert(1, "GiB", "s")


@given(st.sampled_from(PAIRS), st.floats(-1e12, 1e12))
def test_conversion_there_and_back_is_the_identity(pair: tuple[str, str], value: float) -> None:
    there, back = pair
    assert math.isclose(convert(convert(value, there, back), back, there), value, rel_tol=1e-12, abs_tol=1e-12)


def test_every_unit_is_well_formed() -> None:
    for name, item in units().items():
        assert item.factor > 0
        assert item.dimension
        assert convert(2.5, name, name) == 2.5


def test_the_filter_reads_the_same_table() -> None:
    package = Path(efficient_training.__file__).parent
    root = Path(__file__).parent.parent
    copy = root / "_extensions/efficient-training/units.json"
    assert json.loads(copy.read_text()) == json.loads((package / "units.json").read_text())
