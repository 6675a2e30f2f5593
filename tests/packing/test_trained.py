"""Packing as a field of a recipe: what a step on packed rows computes, holds, and refuses."""

import os
from typing import Any

import pytest
import torch
from draws import draw_packed

from efficient_training.errors import UserError
from efficient_training.measured import run_timeline
from efficient_training.models import ModelShape
from efficient_training.packing.batch import PackedBatch, packed_batch
from efficient_training.packing.window import cut_rows, moved, random_documents
from efficient_training.plain import build_plain
from efficient_training.recipe import Packing, Recipe
from efficient_training.run import Trainer, build_model, build_trainer, random_window
from efficient_training.trace import ledger_of, trace_timeline
from efficient_training.workload import Workload

SHAPES = [
    ModelShape("q2", "qwen2", 32, 2, 4, 2, 8, 48, 64, 128, True),
    ModelShape("q3", "qwen3", 32, 2, 4, 1, 20, 48, 64, 128, False),
    ModelShape("g", "gpt2", 32, 2, 4, 4, 8, 48, 64, 128, True),
]
RECIPES: dict[str, dict[str, Any]] = {
    "mask": {"packing": "mask"},
    "mask, math": {"packing": "mask", "attention": "math"},
    "mask, checkpointed": {"packing": "mask", "checkpointing": "full", "loss": "chunked"},
    "varlen": {"packing": "varlen", "precision": "bf16"},
    "varlen, checkpointed": {"packing": "varlen", "precision": "bf16", "checkpointing": "selective"},
}
LENGTHS = [[[5, 17, 1, 9], [20, 12]], [[32], [2, 30]]]
"""Documents of each row, of each of two micro-batches."""
STEP_SIZE = 0.5


class Plain(torch.optim.SGD):
    """Steps by the gradient itself, so that weights after a step show it."""


def trainer(shape: ModelShape, **fields: Any) -> Trainer:
    """A trainer of the same weights each time, in fp32 throughout, whatever its recipe asks for."""
    torch.manual_seed(0)
    weights = list(build_model(shape, Recipe(2)).parameters())
    made = build_trainer(shape, Recipe(2, **fields))
    for own, same in zip(made.model.float().parameters(), weights, strict=True):
        # Far from the small weights of a fresh model, whose logits hardly differ.
        own.data.copy_(same.detach() * (3 if same.dim() > 1 else 1))
    made.optimizer = Plain(made.model.parameters(), lr=STEP_SIZE)
    return made


def documents(shape: ModelShape) -> list[list[list[torch.Tensor]]]:
    generator = torch.Generator().manual_seed(1)
    return [
        [[torch.randint(0, shape.vocab, (n,), generator=generator) for n in row] for row in rows] for rows in LENGTHS
    ]


def packed_window(shape: ModelShape) -> list[PackedBatch]:
    return [packed_batch([[{"input_ids": one.tolist()} for one in row] for row in rows]) for rows in documents(shape)]


def step_apart(shape: ModelShape) -> tuple[float, list[torch.Tensor]]:
    """Loss and weights after a step on the documents one by one, through transformers' own loss."""
    made, total = trainer(shape), 0.0
    apart = [one for rows in documents(shape) for row in rows for one in row if len(one) > 1]
    targets = sum(len(one) - 1 for one in apart)
    for one in apart:
        loss = made.model(input_ids=one[None], labels=one[None]).loss * (len(one) - 1) / targets
        loss.backward()
        total += loss.item()
    made.optimizer.step()
    return total, [parameter.detach() for parameter in made.model.parameters()]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
@pytest.mark.parametrize("name", RECIPES)
def test_a_packed_step_is_that_on_the_documents_one_by_one(shape: ModelShape, name: str) -> None:
    loss, weights = step_apart(shape)
    made = trainer(shape, **RECIPES[name])
    assert float(made.step(packed_window(shape))) == pytest.approx(loss, abs=1e-5)
    for own, wanted in zip(made.model.parameters(), weights, strict=True):
        torch.testing.assert_close(own.detach(), wanted, atol=STEP_SIZE * 1e-5, rtol=1e-5)


def test_positions_that_run_on_give_another_loss() -> None:
    loss, _ = step_apart(SHAPES[0])
    learned, _ = step_apart(SHAPES[2])
    for shape, packing, right in (
        (SHAPES[0], "mask", loss),  # the mask is made of positions, so that documents see each other
        (SHAPES[2], "varlen", learned),  # each position has an embedding of its own
    ):
        window = packed_window(shape)
        for batch in window:
            batch["position_ids"] = torch.arange(32).repeat(2, 1)
        assert abs(float(trainer(shape, **RECIPES[packing]).step(window)) - right) > 1e-3


def test_a_packed_recipe_learns() -> None:
    for packing in ("mask", "varlen"):
        torch.manual_seed(0)
        made = build_trainer(SHAPES[0], Recipe(2, precision="bf16-autocast", packing=packing))
        for group in made.optimizer.param_groups:
            group["lr"] = 1e-2
        window = packed_window(SHAPES[0])
        losses = [float(made.step(window)) for _ in range(8)]
        assert losses[-1] < losses[0] - 1


SOAK = bool(os.environ.get("SOAK"))


@pytest.mark.parametrize("seed", range(4000, 4030 if SOAK else 4004))
def test_a_trace_is_the_run_on_real_tensors_to_the_byte(seed: int) -> None:
    workload, recipe = draw_packed(seed, deepest=3, small=True)
    traced = trace_timeline(workload.model, workload, recipe, "cpu")
    ran = run_timeline(workload, recipe)
    assert ledger_of(traced, "run").entries == ledger_of(ran, "run").entries, (workload, recipe)


def test_random_rows_are_filled_by_documents_the_same_each_time() -> None:
    workload = Workload(SHAPES[0], 33, 33 * 6)
    first, last = random_window(workload, Recipe(2, packing="mask"))[::2]
    assert not isinstance(first, torch.Tensor)
    assert not isinstance(last, torch.Tensor)
    assert first["lengths"] == last["lengths"]
    assert len(first["lengths"]) == 16
    assert first["position_ids"].tolist() == [
        [place for n in row for place in range(n)] for row in (first["lengths"][:8], first["lengths"][8:])
    ]
    assert first["targets"] == 2 * 33 - 16 == int((first["labels"] != -100).sum())
    assert random_documents(1, 1) == [[1]]
    assert random_documents(2, 3) == [[1, 1, 1]] * 2


def test_a_batch_moves_with_all_its_tensors() -> None:
    there = moved(packed_window(SHAPES[0])[0], "meta")
    assert not isinstance(there, torch.Tensor)
    assert {value.device.type for value in there.values() if isinstance(value, torch.Tensor)} == {"meta"}
    assert there["lengths"] == [5, 17, 1, 9, 20, 12]


@pytest.mark.parametrize("lengths", [[[3, 4]], [[3, 4], [7, 1]], [[3, 4], [7, 0]]])
def test_documents_that_do_not_fill_their_rows_are_refused(lengths: list[list[int]]) -> None:
    with pytest.raises(UserError, match="do not fill 2 rows of 7 tokens"):
        cut_rows(torch.ones(2, 7, dtype=torch.long), lengths)


@pytest.mark.parametrize("packing", ["none", "mask"])
def test_a_window_of_the_other_kind_is_refused(packing: Packing) -> None:
    made = trainer(SHAPES[0], packing=packing)
    window: list[Any] = packed_window(SHAPES[0]) if packing == "none" else [torch.ones(2, 4, dtype=torch.long)]
    with pytest.raises(UserError, match=f"with packing {packing} a window holds"):
        made.step(window)


def test_the_plain_loop_takes_no_packed_rows() -> None:
    with pytest.raises(UserError, match="the plain loop takes no packed batches"):
        build_plain(SHAPES[0], Recipe(2, packing="mask"))
