"""A pytest plugin beside nbval: the records of a notebook's fresh run against those it was committed with.

nbval executes each cell and compares its text. This plugin looks at the same run's outputs: each fresh record must
agree with the committed one within the committed one's tolerance, and a claim of scope `everywhere` must hold.
It is loaded wherever the package is installed (entry point `pytest11`), and acts on nothing but nbval's cells.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pytest

from .claims import Claim
from .display import METADATA_KEY
from .editions import Results
from .records import Record


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """After a notebook cell has passed nbval's own comparison, compare its records and judge its claims."""
    yield
    if type(item).__name__ == "IPyNbCell" and not item.options["skip"]:  # type: ignore[attr-defined]
        cell = item.cell  # type: ignore[attr-defined]
        faults = differences(item.test_outputs, cell.get("outputs", []), item.name)  # type: ignore[attr-defined]
        if faults:
            pytest.fail("\n".join(faults), pytrace=False)


def differences(fresh: Iterable[Mapping[str, Any]], committed: Iterable[Mapping[str, Any]], where: str) -> list[str]:
    """What differs between the outputs of a fresh and of the committed run of one cell, a line each."""
    new, old = _read(fresh, f"{where}, fresh"), _read(committed, f"{where}, committed")
    gone = [f"record {name}" for name in old.records if name not in new.records]
    gone += [f"claim {name}" for name in old.claims if name not in new.claims]
    faults = [f"{what} was committed, but this run did not make it" for what in gone]
    for name, record in new.records.items():
        faults += _record_faults(record, old.records.get(name))
    for name, claim in new.claims.items():
        faults += _claim_faults(claim, old.claims.get(name))
    return faults


def _record_faults(fresh: Record, committed: Record | None) -> list[str]:
    name = fresh.name
    if committed is None:
        return [f"record {name} is new: execute the notebook again with `make reference` and commit it"]
    if (fresh.unit, fresh.kind) != (committed.unit, committed.kind):
        return [f"record {name} is now {fresh.kind} in {fresh.unit}, was {committed.kind} in {committed.unit}"]
    if fresh.tolerance != committed.tolerance:
        return [f"record {name} has another tolerance than the committed one: run `make reference`"]
    if (fresh.value is None) != (committed.value is None):
        return [f"record {name} is now {fresh.value} ({fresh.reason}), was {committed.value} ({committed.reason})"]
    if fresh.value is None or committed.value is None or committed.tolerance is None:
        return []
    if committed.tolerance.accepts(fresh.value, committed.value):
        return []
    return [
        f"record {name} is now {fresh.value!r}, was {committed.value!r} {committed.unit}; allowed: "
        f"{committed.tolerance.absolute} + {committed.tolerance.relative} x |committed|"
    ]


def _claim_faults(fresh: Claim, committed: Claim | None) -> list[str]:
    if committed is None:
        return [f"claim {fresh.name} is new: execute the notebook again with `make reference` and commit it"]
    if (fresh.statement, fresh.scope, fresh.records) != (committed.statement, committed.scope, committed.records):
        return [f"claim {fresh.name} says something else than the committed one: run `make reference`"]
    if fresh.scope == "everywhere" and fresh.held is not True:
        return [f"claim {fresh.name} must hold everywhere and does not: {fresh.evidence}"]
    return []


def _read(outputs: Iterable[Mapping[str, Any]], where: str) -> Results:
    results = Results(where)
    for output in outputs:
        if METADATA_KEY in (output.get("metadata") or {}):
            results.add(output["metadata"][METADATA_KEY])
    return results
