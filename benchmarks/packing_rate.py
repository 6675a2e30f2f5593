"""Packing 10^6 sequences, ours against TRL's packer and torchtune's: `python benchmarks/packing_rate.py`.

Ratios of one run: all pack the same lengths into the same packs, in this process. TRL (`pip install --no-deps trl`,
and `datasets`, which needs pyarrow, pandas, dill, multiprocess and xxhash) packs an Arrow table, its own best-fit
decreasing on all rows at once; `pack_dataset` would give it a thousand rows at a time unless told otherwise, which
fills less. torchtune (`pip install --no-deps torchtune torchdata omegaconf` and what they import; it needs a torchao
that still has `torchao.dtypes.nf4tensor`, such as 0.11) goes through Python lists, so it is given fewer sequences. A
peer that cannot be imported is reported and left out.

Both carry tokens along, which ours does in a second step: so there are two times of ours, for the plan alone and with
all tokens moved into packs. Tokens are single bytes, where the peer allows it, so that moving them costs it the least.
"""

import argparse
import contextlib
import io
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

from efficient_training.packing import best_fit_decreasing, fewest_packs, gather

CAPACITY = 2048


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result


def trl_packs(lengths: Any, rows_at_a_time: int | None) -> tuple[float, int]:
    """Seconds and packs of TRL's packer, on tables of so many rows (`None`: all)."""
    with contextlib.redirect_stderr(io.StringIO()):
        import pyarrow as pa
        from trl.data_utils import _pack_bfd

    offsets = np.concatenate([[0], np.cumsum(lengths)])
    tokens = pa.array(np.zeros(offsets[-1], np.uint8))
    whole = pa.table({"input_ids": pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), tokens)})
    step = rows_at_a_time or len(lengths)
    tables = [whole.slice(start, step) for start in range(0, len(lengths), step)]
    return timed(lambda: sum(len(_pack_bfd(table, CAPACITY)) for table in tables))


def torchtune_packs(lengths: Any) -> tuple[float, int]:
    """Seconds and packs of torchtune's packer."""
    from torchtune.datasets import PackedDataset

    samples = [{"tokens": [0] * n, "labels": [0] * n} for n in lengths.tolist()]
    with contextlib.redirect_stderr(io.StringIO()):  # its progress bar
        return timed(lambda: len(PackedDataset(samples, max_seq_len=CAPACITY)))


def compare(name: str, lengths: Any, peer: Callable[[], tuple[float, int]]) -> None:
    try:
        theirs, packs = peer()
    except ImportError as error:
        print(f"{name:34} not run here: {error}")
        return
    tokens = np.zeros(lengths.sum(), np.uint8)
    plan_seconds, packing = timed(lambda: best_fit_decreasing(lengths, CAPACITY))
    seconds = plan_seconds + timed(lambda: sum(1 for _ in gather(tokens, packing)))[0]
    fill = lengths.sum() / (packs * CAPACITY)
    print(
        f"{name:34} {len(lengths):>9,} {theirs:>9.2f} {fill:>8.4f} {plan_seconds:>9.2f} {seconds:>9.2f} "
        f"{packing.fill:>8.4f} {theirs / plan_seconds:>7.0f}x {theirs / seconds:>7.0f}x",
        flush=True,
    )
    if packing.fill < fill:
        raise SystemExit(f"{name}: fuller packs than ours")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sequences", type=int, default=1_000_000)
    parser.add_argument("--torchtune-sequences", type=int, default=50_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    generator = np.random.default_rng(arguments.seed)
    drawn = {
        "log-normal": np.clip(generator.lognormal(5.5, 1.0, arguments.sequences), 1, CAPACITY).astype(np.int64),
        "uniform": generator.integers(1, CAPACITY + 1, arguments.sequences),
    }
    for package in ("trl", "torchtune"):
        try:
            print(f"{package} {version(package)}")
        except PackageNotFoundError:
            print(f"{package} is not installed")
    for name, lengths in drawn.items():
        few = lengths[: arguments.torchtune_sequences]
        print(
            f"\n{name} lengths, mean {lengths.mean():.0f}, packs of {CAPACITY}; at least "
            f"{fewest_packs(lengths, CAPACITY):,} packs\n{'':34} {'sequences':>9} {'theirs, s':>9} {'fill':>8} "
            f"{'plan, s':>9} {'+tokens':>9} {'fill':>8} {'ratio':>8} {'+tokens':>8}"
        )
        compare("TRL, all rows at once", lengths, lambda lengths=lengths: trl_packs(lengths, None))
        compare("TRL, 1,000 rows at a time", lengths, lambda lengths=lengths: trl_packs(lengths, 1000))
        compare("torchtune", few, lambda few=few: torchtune_packs(few))


if __name__ == "__main__":
    main()
