import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from efficient_training import records
from efficient_training.claims import Claim, claim
from efficient_training.records import record
from efficient_training.validation import validate


@pytest.fixture(autouse=True)
def nothing_remembered() -> Iterator[None]:
    records._remembered.clear()
    yield
    records._remembered.clear()


def test_a_claim_is_judged_by_its_test_on_the_values_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    before, after = record("memory.before", 10, "MiB"), record("memory.after", 4, "MiB")
    made = claim("memory.lowers", "it lowers the peak", lambda b, a: a < b, on=[before, "memory.after"])
    assert made.held is True
    assert made.records == ("memory.before", "memory.after")
    assert made.evidence == "memory.before = 10 MiB; memory.after = 4 MiB"
    assert capsys.readouterr().out.splitlines()[-1] == "claim memory.lowers (everywhere): held"
    assert claim("memory.raises", "it raises it", lambda b, a: a > b, on=[before, after]).held is False


def test_a_hardware_claims_verdict_stays_out_of_the_text() -> None:
    fast = record("memory.fast", 1, "s")
    for held in (True, False):
        made = claim(f"memory.is_{held}".lower(), "s", lambda _, held=held: held, on=[fast], scope="hardware")
        assert made.held is held
        assert made.text.endswith("(hardware): judged on each machine")


def test_a_claim_on_a_missing_value_is_not_judged() -> None:
    record("memory.fp8", None, "MiB", reason="needs compute capability 9.0")

    def never(_: float) -> bool:
        raise AssertionError("must not be called")

    made = claim("memory.fp8_lower", "fp8 is lower", never, on=["memory.fp8"])
    assert (made.held, made.reason) == (None, "needs compute capability 9.0")
    assert made.text.endswith("not judged: needs compute capability 9.0")


def test_a_claim_survives_json() -> None:
    for made in (
        claim("memory.held", "s", lambda _: True, on=[record("memory.one", 1, "count")]),
        claim("memory.unknown", "s", lambda _: True, on=[record("memory.none", None, "count", reason="no GPU")]),
    ):
        data = json.loads(json.dumps(made.to_json()))
        validate(data, "claim", "test")
        assert Claim.from_json(data) == made


@pytest.mark.parametrize(
    ("name", "test", "on", "scope", "error", "message"),
    [
        ("memory.x", lambda _: 1, ["memory.one"], "everywhere", TypeError, "must return a bool, got int"),
        ("memory.x", lambda _: True, ["memory.two"], "everywhere", KeyError, "which is no record of this notebook"),
        (
            "memory.x",
            lambda _: True,
            ["memory.one"],
            "somewhere",
            ValueError,
            "must be one of everywhere, hardware",
        ),
        ("memory.x", lambda: True, [], "everywhere", ValueError, "must rest on at least one record"),
        ("memory.one", lambda _: True, ["memory.one"], "everywhere", ValueError, "has been recorded already"),
        ("x", lambda _: True, ["memory.one"], "everywhere", ValueError, "must be lower-case words joined by dots"),
    ],
)
def test_a_bad_claim_is_refused(
    name: str, test: Callable[..., Any], on: list[str], scope: Any, error: type[Exception], message: str
) -> None:
    record("memory.one", 1, "count")
    with pytest.raises(error, match=message):
        claim(name, "a statement", test, on=on, scope=scope)
