"""The instants of a step at which a phase can have its peak: those that no other always exceeds."""

from functools import lru_cache
from itertools import pairwise
from operator import lt
from typing import NamedTuple

from ..ledger import COMPONENTS, PHASES, Place
from .algebra import ONE, ZERO, Monomial, Size
from .plan import Segment, plan
from .step import run_step
from .tape import Instant
from .words import Words


class Candidates(NamedTuple):
    """The candidates of one phase in the order of time: bytes by component at the first, then what changes to the next.

    Few components change, and by few terms, so that each costs little more to evaluate than the last.
    """

    first: dict[str, Size]
    changes: list[dict[str, Size]]


@lru_cache(maxsize=4096)
def candidates(words: Words) -> dict[Place, dict[str, Candidates]]:
    """The candidates of each phase, on the device, and where something waits there, on the host."""
    segments: list[Segment] = plan(words)
    run = run_step(words, segments)
    found: dict[Place, dict[str, Candidates]] = {"device": _by_phase(run.instants, words)}
    return found | {"host": _by_phase(run.on_host, words)} if any(one.components for one in run.on_host) else found


def _by_phase(instants: list[Instant], words: Words) -> dict[str, Candidates]:
    by_phase: dict[str, list[Instant]] = {phase: [] for phase in PHASES}
    for instant in instants:
        by_phase[instant.phase].append(instant)
    return {phase: _by_changes(_highest(group, words)) for phase, group in by_phase.items()}


def _by_changes(instants: list[Instant]) -> Candidates:
    names: list[str] = [name for name in COMPONENTS if any(name in instant.components for instant in instants)]
    full = [{name: instant.components.get(name, ZERO) for name in names} for instant in instants]
    pairs = pairwise(full)
    return Candidates(
        full[0], [{n: after[n] - before[n] for n in names if after[n] != before[n]} for before, after in pairs]
    )


def _highest(instants: list[Instant], words: Words) -> list[Instant]:
    """Without those that an earlier one never falls below, or a later one always exceeds."""
    expanded = [_expanded(instant.bytes, words) for instant in instants]
    factors = _rows(expanded)
    # The names may all be 0: one that another exceeds has the smaller constant, or the same and comes later.
    left = sorted(range(len(instants)), key=lambda number: -expanded[number].get((), 0))
    kept = []
    while left:
        first, *left = left
        kept.append(first)
        left = [number for number in left if any(map(lt, factors[first], factors[number]))]
    return [instants[number] for number in sorted(kept)]


def _rows(sizes: list[dict[Monomial, int]]) -> list[tuple[int, ...]]:
    """The factors of each size, without those that all share; first those in which most differ, which tell soonest."""
    monomials = {monomial: None for size in sizes for monomial in size}
    columns = [[size.get(monomial, 0) for size in sizes] for monomial in monomials]
    differing = sorted((column for column in columns if len(set(column)) > 1), key=lambda column: -len(set(column)))
    return list(zip(*differing, strict=True)) or [()] * len(sizes)


def _expanded(size: Size, words: Words) -> dict[Monomial, int]:
    """`size` over names that may all be 0: each name that is 1 or more stands for 1 and a rest.

    Then a polynomial without a negative factor is never negative. What is known of sizes is put in: queries have at
    least as many heads as keys, padding only adds, and rotary embeddings halve head_dim exactly.
    """
    out: dict[Monomial, int] = {}
    for monomial, factor in size.terms.items():
        for product, times in _product(monomial, words.family != "gpt2").items():
            out[product] = out.get(product, 0) + factor * times
    return {monomial: factor for monomial, factor in out.items() if factor}


@lru_cache(maxsize=65536)
def _product(monomial: Monomial, halved: bool) -> dict[Monomial, int]:
    product = ONE
    for name in monomial:
        product = product * _rest(name, halved)
    return product.terms


LARGER = (
    ("heads", "kv_heads"),
    ("padded_sequence", "sequence"),
    ("padded_row", "sequence"),
    ("padded_head_dim", "head_dim"),
)
"""Names of which the first is never less than the second."""


RESTS = ("further_", "two_", "three_", "four_", "ragged", "quantized_", "plain_", "blocks_")
"""How names begin that may be 0."""


@lru_cache(maxsize=1024)
def _rest(name: str, halved: bool) -> Size:
    """The name in terms of rests that may be 0."""
    if name.startswith(RESTS):
        return Size.named(name)
    if name == "head_dim" and halved:
        return _rest("half_head", halved) * 2
    for larger, smaller in LARGER:
        if name == larger:
            return _rest(smaller, halved) + Size.named(f"{larger} over {smaller}")
    return ONE + Size.named(f"{name} over 1")
