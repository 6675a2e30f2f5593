"""Claims: named statements, each with a test on records, judged on the machine that runs the notebook.

A claim of scope `everywhere` must hold on every machine, and a run in which it does not hold fails the tests. A claim
of scope `hardware` may fail on some machine, and that machine's edition of the book then says so.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from .display import show
from .records import Record, check_name, remember, remembered
from .units import unit as known_unit

Scope = Literal["everywhere", "hardware"]
SCOPES: tuple[Scope, ...] = ("everywhere", "hardware")


@dataclass(frozen=True)
class Claim:
    """A judged claim: `held` is `None` where a record that it rests on has no value, and `reason` says why."""

    name: str
    statement: str
    scope: Scope
    held: bool | None
    records: tuple[str, ...]
    evidence: str
    reason: str | None = None

    def __post_init__(self) -> None:
        check_name(self.name, "claim")
        if self.scope not in SCOPES:
            raise ValueError(f"claim {self.name}: scope must be one of {', '.join(SCOPES)}, got {self.scope!r}")
        if not self.records:
            raise ValueError(f"claim {self.name}: a claim must rest on at least one record")
        if self.held is None and not self.reason:
            raise ValueError(f"claim {self.name}: a claim that was not judged needs a reason")

    @property
    def text(self) -> str:
        """The line that the notebook shows; a hardware claim's verdict may differ, so it stays out of the text."""
        if self.scope == "hardware":
            return f"claim {self.name} (hardware): judged on each machine"
        verdict = {True: "held", False: "not held", None: f"not judged: {self.reason}"}[self.held]
        return f"claim {self.name} (everywhere): {verdict}"

    def _ipython_display_(self) -> None:
        """Show nothing where a cell ends in `claim(...)`: its line has been shown, without machine-bound digits."""

    def to_json(self) -> dict[str, Any]:
        """The JSON object of `schema/claim.schema.json`."""
        return {"type": "claim", **asdict(self), "records": list(self.records)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Claim":
        """The claim of a JSON object that has passed the schema."""
        fields = {key: value for key, value in data.items() if key != "type"}
        return cls(**{**fields, "records": tuple(fields["records"])})


def claim(
    name: str,
    statement: str,
    test: Callable[..., bool],
    on: Sequence[Record | str],
    *,
    scope: Scope = "everywhere",
) -> Claim:
    """Judge a claim by calling `test` with the values of the records `on`, in their order, and display the verdict.

    Raises `KeyError` where a record has not been made by this kernel, `TypeError` where the test does not return a
    bool, `ValueError` on a name that has been taken or an unknown scope.
    """
    records = [_record(name, item) for item in on]
    missing = next((item for item in records if item.value is None), None)
    evidence = "; ".join(_evidence(item) for item in records)
    held, reason = None, None
    if missing is not None:
        reason = missing.reason
    else:
        held = test(*(item.value for item in records))
        if not isinstance(held, bool):
            raise TypeError(f"claim {name}: the test must return a bool, got {type(held).__name__}")
    made = Claim(name, statement, scope, held, tuple(item.name for item in records), evidence, reason)
    remember(made.name, made)
    show(made.text, made.to_json())
    return made


def _record(claim_name: str, item: Record | str) -> Record:
    name = item.name if isinstance(item, Record) else item
    made = remembered().get(name)
    if not isinstance(made, Record):
        raise KeyError(f"claim {claim_name} rests on {name!r}, which is no record of this notebook so far")
    return made


def _evidence(item: Record) -> str:
    if item.value is None:
        return f"{item.name}: {item.reason}"
    value = f"{item.value:,}" if isinstance(item.value, int) else f"{item.value:.6g}"
    return f"{item.name} = {value} {known_unit(item.unit).label}".rstrip()
