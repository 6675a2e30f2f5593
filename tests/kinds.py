"""One definition of a price, evaluated with ints, with arrays and by a recorded program: all must agree."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from efficient_training.ledger import PHASES
from efficient_training.price import Words, price_sizes
from efficient_training.price.ops import Expression, program


def check_kinds(
    words: Words, rows: Sequence[dict[str, int]], sizes: Callable[[dict[str, Any]], dict[str, Any]]
) -> None:
    """Compare the prices of `rows`, whose values `sizes` makes into the named sizes, whatever their kind."""
    by_ints = [price_sizes(words, sizes(row)) for row in rows]
    by_arrays = price_sizes(words, sizes({name: np.array([row[name] for row in rows]) for name in rows[0]}))
    recorded = price_sizes(words, sizes({name: Expression.named(name) for name in rows[0]}))
    outputs = {(p, c): f"out{n}" for n, (p, c) in enumerate((p, c) for p in PHASES for c in recorded[p])}
    lines = "\n".join(program({name: recorded[p][c] for (p, c), name in outputs.items()}))
    for number, row in enumerate(rows):
        scope: dict[str, Any] = {**row, "where": lambda condition, yes, no: yes if condition else no}
        exec(lines, scope)
        for (phase, component), name in outputs.items():
            expected = by_ints[number][phase][component]
            assert int(np.broadcast_to(by_arrays[phase][component], len(rows))[number]) == expected
            assert scope[name] == expected
