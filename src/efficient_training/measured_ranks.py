"""Recipes run for real on several processes of this machine: the ledger of each rank.

Also the script that those processes run, by `launch`.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from efficient_training.errors import UserError
from efficient_training.fields import from_mapping, to_mapping
from efficient_training.ledger import Ledger
from efficient_training.recipe import Recipe
from efficient_training.workload import Workload

Case = tuple[Workload, Recipe]


def ledgers_on_ranks(
    cases: Sequence[Case], *, timeout_s: float | None = 300, progress: bool = False
) -> list[list[Ledger]]:
    """The ledgers of each case, by rank: one step on real tensors, random weights and random tokens, over gloo or NCCL.

    All cases run on the same processes, one after the other. Raises `UserError` where they have different numbers of
    ranks or there are none, and `launch.LaunchError` where a rank fails.
    """
    reports = _launched(cases, {}, timeout_s, progress)
    return [[Ledger.from_json(one["ledger"]) for one in by_rank] for by_rank in reports]


def losses_on_ranks(
    cases: Sequence[Case], window: Sequence[Any], steps: int, *, timeout_s: float = 300
) -> list[list[list[float]]]:
    """The losses of the first `steps` steps of each case, by rank, from the weights of seed 0.

    `window` holds the micro-batches (sequences, tokens) of token ids of one step over all ranks, which are dealt out to
    them in turn: to rank r the r-th, and every one `ranks` further on. Raises as `ledgers_on_ranks`.
    """
    ids = [one.tolist() for one in window]
    reports = _launched(cases, {"window": ids, "steps": steps}, timeout_s, progress=False)
    return [[one["losses"] for one in by_rank] for by_rank in reports]


def _launched(
    cases: Sequence[Case], options: dict[str, Any], timeout_s: float | None, progress: bool
) -> list[list[Any]]:
    """What the ranks reported of each case."""
    from efficient_training.launch import launch

    counts = sorted({recipe.ranks for _, recipe in cases})
    if len(counts) != 1:
        raise UserError(f"run: cases that run together need one number of ranks, got {counts}")
    with TemporaryDirectory() as folder:
        path = Path(folder, "cases.json")
        made = [[to_mapping(work), to_mapping(how)] for work, how in cases]
        path.write_text(json.dumps({"cases": made, **options}), encoding="utf-8")
        result = launch(__file__, str(path), ranks=counts[0], timeout_s=timeout_s, progress=progress)
    by_rank = [result.reports[rank] for rank in range(counts[0])]
    return [[reports[number] for reports in by_rank] for number in range(len(cases))]


def _run_losses(workload: Workload, recipe: Recipe, device: Any, rank: int, window: Any, steps: int) -> list[float]:
    import torch

    from efficient_training.run import build_trainer

    torch.manual_seed(0)
    trainer = build_trainer(workload.model, recipe, device)
    own = [torch.tensor(ids, device=device) for ids in window[rank :: recipe.ranks]]
    return [float(trainer.step(own)) for _ in range(steps)]


def _run_case(workload: Workload, recipe: Recipe, device: Any, rank: int) -> Ledger:
    import torch

    from efficient_training.run import build_trainer, random_window
    from efficient_training.trace import ledger_of, track_step

    torch.manual_seed(0)
    trainer = build_trainer(workload.model, recipe, device)
    torch.manual_seed(1 + rank)
    window = random_window(workload, recipe, device)
    return ledger_of(track_step(trainer, window, workload.model.vocab), "run")


def _main(path: str) -> None:
    from efficient_training.launch.worker import worker

    data = json.loads(Path(path).read_text(encoding="utf-8"))
    with worker() as own:
        for work, how in data["cases"]:
            case = from_mapping(Workload, work, path), from_mapping(Recipe, how, path)
            if "window" in data:
                own.report(losses=_run_losses(*case, own.device, own.rank, data["window"], data["steps"]))
            else:
                own.report(ledger=_run_case(*case, own.device, own.rank).to_json())


if __name__ == "__main__":
    _main(sys.argv[1])
