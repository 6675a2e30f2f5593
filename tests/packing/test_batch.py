"""Packed batches: what they hold, what is refused, and that the loss is that of separate documents."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import DataCollatorWithFlattening, Qwen2Config, Qwen2ForCausalLM

from efficient_training.errors import UserError
from efficient_training.losses import IGNORE
from efficient_training.packing.attention import IMPLEMENTATION, document_attention
from efficient_training.packing.batch import block_mask, document_starts, model_inputs, packed_batch

SIZES: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 64, "bos_token_id": None, "eos_token_id": None,
}  # fmt: skip


def samples(*lengths: int, seed: int = 0) -> list[dict[str, list[int]]]:
    generator = torch.Generator().manual_seed(seed)
    return [{"input_ids": torch.randint(1, 64, (n,), generator=generator).tolist()} for n in lengths]


def model(attention: str) -> Any:
    torch.manual_seed(0)
    made = Qwen2ForCausalLM(Qwen2Config(**SIZES | {"attn_implementation": attention})).train()
    for parameter in made.parameters():  # far from the small weights of a fresh model, whose logits hardly differ
        parameter.data *= 3 if parameter.dim() > 1 else 1
    return made


def separate_loss(made: Any, documents: list[dict[str, list[int]]]) -> torch.Tensor:
    losses, targets = torch.zeros(()), 0
    for document in documents:
        ids = torch.tensor([document["input_ids"]])
        losses += made(input_ids=ids, labels=ids).loss * (ids.shape[1] - 1)
        targets += ids.shape[1] - 1
    return losses / targets


def test_a_batch_holds_what_keeps_documents_apart() -> None:
    batch = packed_batch(
        [[{"input_ids": [5, 6, 7]}, {"input_ids": [8, 9]}], [{"input_ids": [1], "labels": [1]}]], 6, pad=3
    )
    assert batch["input_ids"].tolist() == [[5, 6, 7, 8, 9, 3], [1, 3, 3, 3, 3, 3]]
    assert batch["labels"].tolist() == [[IGNORE, 6, 7, IGNORE, 9, IGNORE], [IGNORE] * 6]
    assert batch["position_ids"].tolist() == [[0, 1, 2, 0, 1, 0], [0, 0, 1, 2, 3, 4]]
    assert batch["cu_seq_lens"].tolist() == [0, 3, 5, 6, 7, 12]
    assert batch["cu_seq_lens"].dtype == torch.int32
    assert batch["max_length"] == 5


def test_given_labels_are_kept_but_for_the_first() -> None:
    batch = packed_batch([[{"input_ids": [5, 6, 7], "labels": [5, IGNORE, 7]}]])
    assert batch["labels"].tolist() == [[IGNORE, IGNORE, 7]]


def test_one_row_is_what_transformers_flattens() -> None:
    documents = samples(5, 1, 9)
    ours = model_inputs(packed_batch([documents]))
    theirs = DataCollatorWithFlattening(return_tensors="pt", return_flash_attn_kwargs=True)(documents)
    for name in ("input_ids", "labels", "position_ids", "cu_seq_lens_q", "cu_seq_lens_k"):
        assert torch.equal(ours[name], theirs[name])
    assert ours["max_length_q"] == theirs["max_length_q"]


@given(st.lists(st.lists(st.integers(1, 6), min_size=1, max_size=4), min_size=1, max_size=3))
def test_boundaries_positions_and_mask_agree(lengths: list[list[int]]) -> None:
    batch = packed_batch([samples(*row) for row in lengths])
    starts = document_starts(batch["position_ids"])
    assert starts.flatten().nonzero().flatten().tolist() == batch["cu_seq_lens"][:-1].tolist()
    mask, positions = block_mask(batch["position_ids"]), batch["position_ids"]
    assert mask.sum(-1)[:, 0].tolist() == (positions + 1).tolist()  # a token sees its document so far
    assert not mask.triu(1).any()
    model_inputs(batch)


@pytest.mark.parametrize("attention", ["sdpa", "eager", IMPLEMENTATION])
@pytest.mark.parametrize("rows", [[[0, 1, 2, 3]], [[0, 1], [2, 3]], [[2], [0, 3], [1]]])
def test_the_loss_and_gradient_are_those_of_separate_documents(attention: str, rows: list[list[int]]) -> None:
    documents, made = samples(5, 17, 9, 11), model(attention)
    reference = model("sdpa")
    wanted = separate_loss(reference, documents)
    wanted.backward()
    loss = made(**model_inputs(packed_batch([[documents[i] for i in row] for row in rows], 42))).loss
    loss.backward()
    assert loss.item() == pytest.approx(wanted.item(), abs=1e-5)
    for one, other in zip(made.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_what_mixes_documents_changes_the_loss(attention: str) -> None:
    documents, made = samples(5, 17, 9, 11), model(attention)
    wanted = separate_loss(made, documents).item()
    inputs = model_inputs(packed_batch([documents]))
    without = {name: value for name, value in inputs.items() if name != "position_ids"}
    wrong = {
        "no positions": without,
        "a cache": {**inputs, "use_cache": True},
        "a mask of ones": {**inputs, "attention_mask": torch.ones_like(inputs["input_ids"])},
        "first targets": {**inputs, "labels": inputs["input_ids"]},
    }
    for name, arguments in wrong.items():
        assert abs(made(**arguments).loss.item() - wanted) > 1e-3, name


def test_batches_that_mix_documents_are_refused_in_one_line() -> None:
    batch = packed_batch([samples(3, 4)])
    running = torch.arange(7)[None]
    wrong: dict[str, dict[str, Any]] = {
        "position_ids are missing": {name: part for name, part in batch.items() if name != "position_ids"},
        "do not start again": {**batch, "position_ids": running},
        "attention_mask": {**batch, "attention_mask": torch.ones_like(batch["input_ids"])},
        "first token of a document is a target": {**batch, "labels": batch["input_ids"]},
    }
    for words, spoiled in wrong.items():
        with pytest.raises(UserError, match=words) as caught:
            model_inputs(spoiled)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("packs", "capacity", "words"),
    [
        ([], None, "at least one pack"),
        ([[]], None, "at least one sequence"),
        ([[{"input_ids": [1]}, {"input_ids": []}]], None, "sequence 1 of pack 0 is empty"),
        ([[{"input_ids": [1, 2, 3]}]], 2, "pack 0 has 3 tokens, more than its capacity of 2"),
        ([[{"input_ids": [1, 2], "labels": [1]}]], None, "not as many labels"),
    ],
)
def test_packs_that_are_none_are_refused(packs: Any, capacity: int | None, words: str) -> None:
    with pytest.raises(UserError, match=words):
        packed_batch(packs, capacity)


def test_attention_within_documents_is_masked_attention() -> None:
    torch.manual_seed(0)
    query = torch.randn(12, 4, 8, requires_grad=True)
    key, value = (torch.randn(12, 2, 8, requires_grad=True) for _ in range(2))
    boundaries = torch.tensor([0, 5, 6, 12], dtype=torch.int32)
    positions = torch.tensor([[*range(5), 0, *range(6)]])
    out = document_attention(query, key, value, boundaries, 6, scale=0.3)
    q, k, v = (tensor.transpose(0, 1)[None] for tensor in (query, key, value))
    wanted = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=block_mask(positions), scale=0.3, enable_gqa=True
    )[0].transpose(0, 1)
    torch.testing.assert_close(out, wanted)
    grad = torch.randn_like(out)
    ours = torch.autograd.grad(out, (query, key, value), grad)
    theirs = torch.autograd.grad(wanted, (query, key, value), grad)
    torch.testing.assert_close(ours, theirs)


def test_attention_without_boundaries_is_refused() -> None:
    made = model(IMPLEMENTATION)
    with pytest.raises(UserError, match="no boundaries"):
        made(input_ids=torch.ones(1, 4, dtype=torch.long), use_cache=False)
    inputs = model_inputs(packed_batch([samples(3, 4)]))
    with pytest.raises(UserError, match="neither a mask nor dropout"):
        made(**inputs, attention_mask=torch.zeros(1, 1, 7, 7))
