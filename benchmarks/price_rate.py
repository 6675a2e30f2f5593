"""Recipes priced a second, by arrays and one by one: `python benchmarks/price_rate.py [--recipes 20000]`.

Each set of words (family, precision, checkpointing ...) is worked out once and kept, which the first line times; the
rates are those of pricing with the sets at hand, as a search over recipes does.
"""

import argparse
import itertools
import statistics
import time

import numpy as np

from efficient_training.models import presets
from efficient_training.price import named_sizes, price, price_sizes, words_of
from efficient_training.recipe import Recipe
from efficient_training.workload import Workload

PRECISIONS = ("fp32", "bf16-autocast", "bf16")
CHECKPOINTING = ("none", "full", "selective")
REPEATS = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recipes", type=int, default=20_000, help="recipes of each set of words")
    count = parser.parse_args().recipes
    shape = presets()["qwen2.5-7b"]
    recipes = [Recipe(1, precision=p, checkpointing=c) for p, c in itertools.product(PRECISIONS, CHECKPOINTING)]
    words = [words_of(shape, recipe, accumulating=True) for recipe in recipes]
    start = time.perf_counter()
    small = _sizes(1)
    for one in words:
        price_sizes(one, small)
    print(f"working out {len(words)} sets of words: {time.perf_counter() - start:.2f} s")

    sizes = _sizes(count)
    rates = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        for one in words:
            price_sizes(one, sizes)
        rates.append(count * len(words) / (time.perf_counter() - start))
    print(f"arrays of {count:,}: {statistics.median(rates):,.0f} recipes/s (median of {REPEATS})")

    workload = Workload(shape, 2048, 2048 * 8)
    rates = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        for recipe in recipes:
            price(workload, recipe)
        rates.append(len(recipes) / (time.perf_counter() - start))
    print(f"one by one: {statistics.median(rates):,.0f} recipes/s (median of {REPEATS})")


def _sizes(count: int) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(0)
    heads = draw.choice([8, 16, 32, 64], count)
    return dict(
        named_sizes(
            batch=draw.integers(1, 64, count),
            sequence=128 * draw.integers(1, 64, count),
            hidden=128 * draw.integers(4, 64, count),
            layers=draw.integers(1, 80, count),
            heads=heads,
            kv_heads=heads // 4,
            head_dim=draw.choice([64, 128], count),
            ffn=128 * draw.integers(8, 200, count),
            vocabulary=draw.choice([32_000, 128_256, 151_936], count),
            positions=np.full(count, 32_768),
            checkpoint_every=draw.integers(1, 8, count),
        )
    )


if __name__ == "__main__":
    main()
