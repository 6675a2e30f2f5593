from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from efficient_training.accumulation import (  # noqa: E402
    IGNORED,
    accumulate,
    accumulation_steps,
    micro_batches,
    valid_tokens,
)
from efficient_training.errors import UserError  # noqa: E402


@pytest.fixture
def model() -> Any:
    config = transformers.Qwen2Config(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        use_cache=False,
    )
    torch.manual_seed(0)
    return transformers.Qwen2ForCausalLM(config)


@pytest.fixture
def batch() -> dict[str, Any]:
    """Six sequences of unequal length, padded on the right."""
    lengths = torch.tensor([9, 3, 5, 2, 9, 4])
    valid = torch.arange(9) < lengths[:, None]
    tokens = torch.randint(32, valid.shape, generator=torch.Generator().manual_seed(1))
    return {
        "input_ids": tokens * valid,
        "attention_mask": valid.long(),
        "labels": torch.where(valid, tokens, IGNORED),
    }


def gradient(model: Any) -> Any:
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


def test_steps_follow_from_batch_micro_batch_and_ranks() -> None:
    assert accumulation_steps(256, 4) == 64
    assert accumulation_steps(256, 4, ranks=8) == 8
    assert accumulation_steps(32, 4, ranks=8) == 1


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((100, 8, 4), "use 96 or 128 sequences"),
        ((16, 8, 4), "use 32 sequences"),
        ((0, 8, 4), "at least 1"),
        ((64, 8, 0), "at least 1"),
    ],
)
def test_uneven_batches_are_refused(sizes: tuple[int, ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        accumulation_steps(*sizes)


def test_micro_batches_are_the_batch_in_pieces(batch: dict[str, Any]) -> None:
    pieces = list(micro_batches(batch, 4))
    assert [piece["labels"].shape[0] for piece in pieces] == [4, 2]
    for name, tensor in batch.items():
        assert torch.equal(torch.cat([piece[name] for piece in pieces]), tensor)


def test_first_positions_and_ignored_labels_do_not_count(batch: dict[str, Any]) -> None:
    assert valid_tokens(batch["labels"]) == (9 + 3 + 5 + 2 + 9 + 4) - 6
    assert valid_tokens(torch.full((2, 5), IGNORED)) == 0


@pytest.mark.parametrize("size", [1, 2, 4])
def test_accumulated_gradient_is_the_full_batch_gradient(model: Any, batch: dict[str, Any], size: int) -> None:
    full = model(**batch).loss
    full.backward()
    expected = gradient(model)
    model.zero_grad()
    loss = accumulate(model, list(micro_batches(batch, size)))
    torch.testing.assert_close(loss, full.detach())
    torch.testing.assert_close(gradient(model), expected, rtol=1e-4, atol=1e-6)


def test_mean_of_means_is_another_gradient(model: Any, batch: dict[str, Any]) -> None:
    model(**batch).loss.backward()
    expected = gradient(model)
    model.zero_grad()
    pieces = list(micro_batches(batch, 1))
    for piece in pieces:
        (model(**piece).loss / len(pieces)).backward()
    assert (gradient(model) - expected).norm() > 0.1 * expected.norm()


def test_shares_of_ranks_average_to_the_full_batch_gradient(model: Any, batch: dict[str, Any]) -> None:
    model(**batch).loss.backward()
    expected = gradient(model)
    tokens = valid_tokens(batch["labels"])
    shares = []
    for rank in micro_batches(batch, 3):
        model.zero_grad()
        accumulate(model, list(micro_batches(rank, 1)), tokens=tokens, ranks=2)
        shares.append(gradient(model))
    torch.testing.assert_close(torch.stack(shares).mean(0), expected, rtol=1e-4, atol=1e-6)


def test_gradients_are_added_to_those_already_there(model: Any, batch: dict[str, Any]) -> None:
    window = list(micro_batches(batch, 2))
    accumulate(model, window)
    once = gradient(model)
    accumulate(model, window)
    torch.testing.assert_close(gradient(model), 2 * once, rtol=1e-4, atol=1e-6)


def test_a_window_without_valid_tokens_is_refused(model: Any, batch: dict[str, Any]) -> None:
    batch["labels"] = torch.full_like(batch["labels"], IGNORED)
    with pytest.raises(ValueError, match="no valid token"):
        accumulate(model, list(micro_batches(batch, 2)))
