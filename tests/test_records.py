import json
import math
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from efficient_training import records
from efficient_training.records import ANY, EXACT, KINDS, Record, Tolerance, record
from efficient_training.units import units
from efficient_training.validation import validate


@pytest.fixture(autouse=True)
def nothing_remembered() -> Iterator[None]:
    records._remembered.clear()
    yield
    records._remembered.clear()


names = st.from_regex(r"[a-z][a-z0-9_]{0,8}(\.[a-z0-9_]{1,8}){1,3}", fullmatch=True)
numbers = st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False)
positive = st.floats(0, 1e6)
tolerances = st.none() | st.builds(Tolerance, positive, positive)
texts = st.text(st.characters(categories=["L", "N", "P", "Zs"]), min_size=1, max_size=50)


@st.composite
def any_record(draw: st.DrawFn) -> Record:
    value = draw(st.none() | numbers)
    return Record(
        draw(names),
        value,
        draw(st.sampled_from(sorted(units()))),
        draw(st.sampled_from(KINDS)),
        draw(tolerances),
        draw(st.dictionaries(texts, texts | numbers | st.booleans(), max_size=4)),
        draw(texts) if value is None else None,
    )


@given(any_record())
def test_a_record_survives_json(made: Record) -> None:
    data = json.loads(json.dumps(made.to_json()))
    validate(data, "record", "test")
    assert Record.from_json(data) == made


@given(any_record())
def test_the_text_holds_the_value_only_where_it_is_the_same_everywhere(made: Record) -> None:
    assert made.text.startswith(made.name)
    assert "\n" not in made.text
    if made.value is not None:
        assert (" = " in made.text) == (made.tolerance == EXACT)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "Peak"}, "record name 'Peak' must be lower-case words joined by dots"),
        ({"name": "peak"}, "must be lower-case words joined by dots"),
        ({"unit": "gib"}, "unknown unit 'gib'"),
        ({"kind": "guessed"}, "kind must be one of measured, traced, priced, derived, published"),
        ({"value": math.nan}, "nan is not finite; pass value=None and a reason"),
        ({"value": math.inf}, "inf is not finite"),
        ({"value": None}, "a record without a value needs a reason"),
        ({"value": True}, "value must be an int or a float, got bool"),
        ({"value": "3"}, "value must be an int or a float, got str"),
        ({"conditions": {"shape": [1, 2]}}, "condition shape must be a string, a number or a bool"),
    ],
)
def test_a_bad_record_is_refused(change: dict[str, Any], message: str) -> None:
    fields: dict[str, Any] = {"name": "memory.peak", "value": 1.5, "unit": "GiB", "kind": "measured", **change}
    with pytest.raises((ValueError, TypeError), match=message.replace("(", r"\(")):
        Record(**fields)


@pytest.mark.parametrize("bound", [-1.0, math.nan, math.inf])
def test_a_tolerance_is_finite_and_not_negative(bound: float) -> None:
    with pytest.raises(ValueError, match=r"tolerance\.relative must be finite and not negative"):
        Tolerance(relative=bound)


def test_tolerances_accept_what_they_say() -> None:
    assert EXACT.accepts(3, 3)
    assert not EXACT.accepts(3, 3.0000001)
    assert Tolerance(relative=0.1).accepts(-110, -100)
    assert not Tolerance(relative=0.1).accepts(-111, -100)
    assert Tolerance(absolute=0.5).accepts(0.5, 0)
    assert not Tolerance(relative=0.5).accepts(0.1, 0)


def test_record_shows_itself_and_refuses_a_name_twice(capsys: pytest.CaptureFixture[str]) -> None:
    record("memory.peak", 1536, "MiB", kind="derived")
    record("memory.time", 1.25, "s", tolerance=ANY)
    assert capsys.readouterr().out == "memory.peak = 1,536 MiB (derived)\nmemory.time (measured, s)\n"
    with pytest.raises(ValueError, match=r"'memory\.peak' has been recorded already"):
        record("memory.peak", 1537, "MiB")


def test_a_record_without_a_value_says_why() -> None:
    made = record("memory.fp8", None, "MiB", reason="not run here: needs compute capability 9.0, found 8.9")
    assert made.text == "memory.fp8: not run here: needs compute capability 9.0, found 8.9"


def test_scalars_of_numeric_libraries_are_taken_by_their_item() -> None:
    numpy = pytest.importorskip("numpy")
    made = record("memory.scalar", numpy.float32(0.5), "ratio")
    assert (type(made.value), made.value) == (float, 0.5)
