"""The instants of a step at which a phase can have its peak: those that no other always exceeds."""

import random
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from ..ledger import COMPONENTS, PHASES, Place
from .adapters import adapted_sizes
from .algebra import ONE, ZERO, Evaluator, Monomial, Size
from .plan import Segment, plan
from .sizes import named_sizes, sharded_sizes
from .state import state_sizes
from .step import run_step
from .tape import Instant
from .words import Words

SAMPLES = 24
"""Random models at which the highest instant is sought, to try whether it exceeds others always."""


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
    tops = sorted({_top(instants, seed, words) for seed in range(SAMPLES)})
    left = [n for n in range(len(instants)) if n in tops or not _exceeded(n, tops, expanded)]
    return [instants[n] for n in left if not _exceeded(n, left, expanded)]


def _top(instants: list[Instant], seed: int, words: Words) -> int:
    value = Evaluator(state_sizes(words, _random_sizes(random.Random(seed))))
    return max(range(len(instants)), key=lambda number: value(instants[number].bytes))


def _exceeded(number: int, others: list[int], expanded: list[dict[Monomial, int]]) -> bool:
    return any(other != number and _exceeds(expanded[other], expanded[number], other < number) for other in others)


def _exceeds(high: dict[Monomial, int], low: dict[Monomial, int], equal_is_enough: bool) -> bool:
    """Whether `high - low` has no negative term, and where equality is not enough, a constant above 0."""
    if high.get((), 0) - low.get((), 0) < (0 if equal_is_enough else 1):
        return False
    return all(factor >= low.get(monomial, 0) for monomial, factor in high.items()) and all(
        factor <= 0 for monomial, factor in low.items() if monomial not in high
    )


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


def _random_sizes(draw: random.Random) -> dict[str, int]:
    heads = draw.choice([2, 8, 32])
    layers = draw.randint(1, 60)
    model = dict(
        named_sizes(
            batch=draw.choice([1, 4, 32]),
            sequence=draw.choice([8, 128, 2048, 16384]),
            hidden=draw.choice([64, 1024, 8192]),
            layers=layers,
            heads=heads,
            kv_heads=draw.choice([1, 2, heads]),
            head_dim=draw.choice([16, 64, 128]),
            ffn=draw.choice([64, 2048, 32768]),
            vocabulary=draw.choice([256, 32000, 151936]),
            positions=draw.choice([512, 4096]),
            checkpoint_every=draw.randint(1, layers),
        )
    )
    owned = {"owned": draw.randint(1, 2**32), "owned_parameters": draw.randint(1, 500), "owned_step": 1}
    part, group = draw.randint(1, 2**33), draw.randint(1, 2**30)
    cut = {"part": part, "padded": 8 * part, "bucketed": group, "live": group, "group": group, "largest": group}
    sharded = sharded_sizes(model, draw.choice([2, 8, 64]))
    return {**sharded, **adapted_sizes(model, draw.choice([1, 16, 256])), **owned, **cut}
