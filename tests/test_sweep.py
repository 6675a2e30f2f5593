import pytest

from efficient_training.errors import UserError
from efficient_training.models import ModelShape
from efficient_training.recipe import Recipe
from efficient_training.sweep import sweep
from efficient_training.trace import trace
from efficient_training.workload import Workload

SHAPE = ModelShape("q2", "qwen2", 64, 6, 4, 2, 16, 176, 300, 4096, True)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"precision": "fp16-autocast", "optimizer": "fused"},
        {"checkpointing": "full", "loss": "native"},
        {"precision": "bf16", "checkpointing": "selective", "optimizer": "loop"},
    ],
    ids=str,
)
@pytest.mark.parametrize("micro_batch", [2, 7, 64])
def test_two_traces_give_any_micro_batch_to_the_byte(settings: dict[str, str], micro_batch: int) -> None:
    made = sweep(SHAPE, 48, Recipe(2, **settings)).ledger(micro_batch)  # type: ignore[arg-type]
    traced = trace(Workload(SHAPE, 48, 48 * micro_batch), Recipe(micro_batch, **settings))  # type: ignore[arg-type]
    for phase in ("forward", "backward", "optimizer step"):
        assert made.phase_peak(phase) == traced.phase_peak(phase)


def test_crossing_and_largest() -> None:
    made = sweep(SHAPE, 16, Recipe(2))
    at = made.crossing()
    assert at is not None
    assert made.ledger(at - 1).peak_phase() == "optimizer step"
    assert made.ledger(at).peak_phase() != "optimizer step"
    capacity = made.ledger(64).peak()
    assert made.largest(capacity) == 64
    assert made.largest(capacity - 1) == 32
    assert made.largest(0) == 0


def test_a_chunked_loss_is_refused() -> None:
    wide = ModelShape("wide", "qwen2", 64, 2, 4, 2, 16, 176, 400_000, 4096, True)
    with pytest.raises(UserError, match="loss chunked"):
        sweep(wide, 48, Recipe(2, loss="chunked"))


def test_one_sequence_is_refused() -> None:
    with pytest.raises(UserError, match="at least 2"):
        sweep(SHAPE, 16, Recipe(2)).ledger(1)
