"""The ledger: bytes of one rank by place, phase and component, the one type that run, trace and price all return."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from .errors import UserError
from .fields import from_mapping

Place = Literal["device", "host", "disk"]
PhaseName = Literal["forward", "backward", "optimizer step"]
Component = Literal[
    "weights",
    "gradients",
    "optimizer state",
    "master weights",
    "activations",
    "loss",
    "temporaries",
    "communication",
]
View = Literal["priced", "traced", "run"]
PLACES: tuple[Place, ...] = get_args(Place)
PHASES: tuple[PhaseName, ...] = get_args(PhaseName)
COMPONENTS: tuple[Component, ...] = get_args(Component)
VIEWS: tuple[View, ...] = get_args(View)


@dataclass(frozen=True)
class Ledger:
    """Requested bytes: `entries[place][phase][component]`, at the instant of that phase's peak in that place.

    Components of a phase sum to its peak; the peak of a place is the maximum over phases. What an allocator adds
    (`rounding_bytes`), keeps (`reserved_bytes`) and the driver takes (`context_bytes`) are lines of their own, `None`
    where the view does not know them. Raises `UserError` on an unknown word or a negative number.
    """

    view: View
    entries: Mapping[str, Mapping[str, Mapping[str, int]]]
    rounding_bytes: int | None = None
    reserved_bytes: int | None = None
    context_bytes: int | None = None
    notes: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        _known(self.view, VIEWS, "view")
        for place, phases in self.entries.items():
            _known(place, PLACES, "place")
            for phase, components in phases.items():
                _known(phase, PHASES, "phase")
                for component, size in components.items():
                    _known(component, COMPONENTS, "component")
                    if isinstance(size, bool) or not isinstance(size, int) or size < 0:
                        raise UserError(f"ledger: {place}, {phase}, {component} must be bytes, got {size!r}")

    def phase_peak(self, phase: PhaseName, place: Place = "device") -> int:
        """Bytes at the peak of `phase`: the sum of its components."""
        return sum(self.entries.get(place, {}).get(phase, {}).values())

    def peak(self, place: Place = "device") -> int:
        """Bytes at the peak of the step in `place`: the maximum over phases."""
        return max((self.phase_peak(phase, place) for phase in PHASES), default=0)

    def peak_phase(self, place: Place = "device") -> PhaseName:
        """The phase that sets the peak (the first, where several do)."""
        return max(PHASES, key=lambda phase: self.phase_peak(phase, place))

    def to_json(self) -> dict[str, Any]:
        """A JSON object; `from_json` reads it back."""
        return {
            "view": self.view,
            "entries": {place: {p: dict(c) for p, c in phases.items()} for place, phases in self.entries.items()},
            "rounding_bytes": self.rounding_bytes,
            "reserved_bytes": self.reserved_bytes,
            "context_bytes": self.context_bytes,
            "notes": list(self.notes),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any], where: str = "ledger") -> "Ledger":
        """The ledger of a JSON object; raises `UserError` where it is none."""
        return from_mapping(cls, {**data, "notes": tuple(data.get("notes", ()))}, where)


def _known(word: str, words: tuple[str, ...], what: str) -> None:
    if word not in words:
        raise UserError(f"ledger: unknown {what} {word!r}; known: {', '.join(words)}")
