"""Records: the named figures of a notebook, carried by the outputs of the cells that make them.

`record(...)` displays one line of text that is the same on every machine, and puts the record itself, as JSON, in the
metadata of that output. nbval skips metadata; papermill, Quarto and the notebook cleaner keep it. So the executed
notebook is the one place where a figure is stored, and `editions.read_notebook` reads it back.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from .display import show
from .units import unit as known_unit

Kind = Literal["measured", "traced", "priced", "derived", "published"]
KINDS: tuple[Kind, ...] = ("measured", "traced", "priced", "derived", "published")
NAME = re.compile(r"[a-z][a-z0-9_]*(\.[a-z0-9_]+)+")


@dataclass(frozen=True)
class Tolerance:
    """How far a fresh value may stand from the committed one: |fresh - committed| <= absolute + relative * |committed|.

    Both zero, the default, means exactly equal.
    """

    relative: float = 0.0
    absolute: float = 0.0

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"tolerance.{name} must be finite and not negative, got {value}")

    @property
    def exact(self) -> bool:
        """True where only an equal value passes."""
        return self.relative == 0 and self.absolute == 0

    def accepts(self, fresh: float, committed: float) -> bool:
        """Whether `fresh` is close enough to `committed`."""
        return abs(fresh - committed) <= self.absolute + self.relative * abs(committed)


EXACT = Tolerance()
"""The value must be the same on every machine, Python and thread count; only such a value is printed in the output."""

ANY = None
"""The value belongs to the machine (a time, a bandwidth): never compared, judged by claims instead."""


@dataclass(frozen=True)
class Record:
    """One named figure.

    `value` is in `unit`. It is `None` exactly where there is no finite number, and `reason` then says why
    ("not run here: needs ...", "out of memory in backward").
    """

    name: str
    value: int | float | None
    unit: str
    kind: Kind
    tolerance: Tolerance | None = EXACT
    conditions: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    reason: str | None = None

    def __post_init__(self) -> None:
        check_name(self.name, "record")
        known_unit(self.unit)
        if self.kind not in KINDS:
            raise ValueError(f"record {self.name}: kind must be one of {', '.join(KINDS)}, got {self.kind!r}")
        if self.value is None:
            if not self.reason:
                raise ValueError(f"record {self.name}: a record without a value needs a reason")
        elif isinstance(self.value, bool) or not isinstance(self.value, int | float):
            raise TypeError(f"record {self.name}: value must be an int or a float, got {type(self.value).__name__}")
        elif not math.isfinite(self.value):
            raise ValueError(f"record {self.name}: {self.value} is not finite; pass value=None and a reason")
        for key, condition in self.conditions.items():
            if not isinstance(condition, str | int | float | bool):
                raise TypeError(f"record {self.name}: condition {key} must be a string, a number or a bool")

    @property
    def text(self) -> str:
        """The line that the notebook shows: equal on every machine, so the value only where it must be."""
        if self.value is None:
            return f"{self.name}: {self.reason}"
        if self.tolerance is not None and self.tolerance.exact:
            value = f"{self.value:,}" if isinstance(self.value, int) else repr(self.value)
            return f"{self.name} = {value} {known_unit(self.unit).label} ({self.kind})".replace("  ", " ")
        return f"{self.name} ({self.kind}, {self.unit})"

    def _ipython_display_(self) -> None:
        """Show nothing where a cell ends in `record(...)`: its line has been shown, without machine-bound digits."""

    def to_json(self) -> dict[str, Any]:
        """The JSON object of `schema/record.schema.json`."""
        return {"type": "record", **asdict(self), "conditions": dict(self.conditions)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Record":
        """The record of a JSON object that has passed the schema."""
        fields = {key: value for key, value in data.items() if key != "type"}
        tolerance = fields.get("tolerance")
        return cls(**{**fields, "tolerance": None if tolerance is None else Tolerance(**tolerance)})


def check_name(name: str, what: str) -> None:
    """Refuse a name that could not be written in a chapter: lower-case words joined by dots."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ValueError(f"{what} name {name!r} must be lower-case words joined by dots, like 'autocast.peak'")


def record(
    name: str,
    value: float | None,
    unit: str,
    *,
    kind: Kind = "measured",
    tolerance: Tolerance | None = EXACT,
    conditions: Mapping[str, str | int | float | bool] | None = None,
    reason: str | None = None,
) -> Record:
    """Make a record, display it, and remember it for this notebook's claims.

    NumPy and 0-d tensor scalars are taken by their `.item()`. Raises `ValueError` on a name that this kernel has
    recorded before in another cell, on an unknown unit or kind, and on a non-finite value without a reason.
    """
    item = getattr(value, "item", None)
    made = Record(name, item() if item else value, unit, kind, tolerance, conditions or {}, reason)
    remember(made.name, made)
    show(made.text, made.to_json())
    return made


_remembered: dict[str, tuple[Any, Any]] = {}


def remember(name: str, made: Any) -> None:
    """Keep `made` under `name`, refusing a name that another cell, or this run of this cell, has taken."""
    here = _cell()
    if name in _remembered and not _rerun(_remembered[name][0], here):
        raise ValueError(f"{name!r} has been recorded already; a name stands for one figure or claim")
    _remembered[name] = (here, made)


def remembered() -> dict[str, Any]:
    """The records and claims that this kernel has made so far, by name."""
    return {name: made for name, (_, made) in _remembered.items()}


def _cell() -> tuple[str | None, int]:
    """The cell being run (its id, where the front end sends one, as JupyterLab and VS Code do) and which run it is."""
    try:
        from IPython import get_ipython
    except ImportError:
        return None, 0
    shell = get_ipython()
    if shell is None or not hasattr(shell, "get_parent"):
        return None, 0
    metadata = (shell.get_parent() or {}).get("metadata", {})
    return metadata.get("cellId"), shell.execution_count


def _rerun(before: tuple[str | None, int], now: tuple[str | None, int]) -> bool:
    """A reader who runs one cell again in an editor replaces its records; any other repetition is a mistake."""
    return before[0] is not None and before[0] == now[0] and before[1] != now[1]
