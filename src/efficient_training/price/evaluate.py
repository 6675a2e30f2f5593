"""The components at a phase's peak, from its candidate instants: arithmetic, `where`, and no branch on a value."""

from collections.abc import Mapping
from typing import Any

from .algebra import Evaluator
from .candidates import Candidates
from .ops import where


def peaks(candidates: Candidates, sizes: Mapping[str, Any]) -> dict[str, Any]:
    """Bytes by component at the highest instant, at the first where several are as high."""
    value = Evaluator(sizes)
    now = {name: value(size) for name, size in candidates.first.items()}
    chosen = dict(now)
    vary = {name for change in candidates.changes for name in change}
    above: Any = 0
    for change in candidates.changes:
        # How far the sum is above that of the instant chosen so far, and whether that is the new one's from here on.
        for name, size in change.items():
            step = value(size)
            now[name] = now[name] + step
            above = above + step
        higher = above > 0
        above = where(higher, 0, above)
        for name in vary:
            chosen[name] = where(higher, now[name], chosen[name])
    return chosen
