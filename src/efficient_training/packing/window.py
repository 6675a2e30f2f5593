"""Packed batches in a training step: what the model is given of one, by the recipe's `packing`, and random ones."""

import random
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from ..errors import UserError
from ..losses import IGNORE
from ..recipe import Packing
from .batch import PackedBatch, block_mask

Batch = Tensor | PackedBatch
"""A micro-batch of a step: token ids (sequences, tokens), or with packing what `packed_batch` returns."""

DOCUMENTS = 8
"""Documents in each row of random tokens, where it has as many tokens."""


def checked(batch: Batch, packing: Packing) -> Batch:
    """`batch`, if it is of the kind that `packing` takes; raises `UserError` otherwise."""
    if (packing == "none") != isinstance(batch, Tensor):
        kind = "token ids (sequences, tokens)" if packing == "none" else "packed batches (packing.batch.packed_batch)"
        raise UserError(f"run: with packing {packing} a window holds {kind}, got {type(batch).__name__}")
    return batch


def labels_of(batch: Batch) -> Tensor:
    """The labels (rows, tokens), not shifted: of plain token ids, the ids."""
    return batch if isinstance(batch, Tensor) else batch["labels"]


def targets_in(batch: Batch) -> int:
    """How many tokens of `batch` are to be predicted."""
    return batch.shape[0] * (batch.shape[1] - 1) if isinstance(batch, Tensor) else batch["targets"]


def inputs_of(batch: Batch, packing: Packing) -> dict[str, Any]:
    """The keyword arguments of a transformers model without its head, whose attention is one of the book's."""
    if isinstance(batch, Tensor):
        return {"input_ids": batch}
    inputs = {"input_ids": batch["input_ids"], "position_ids": batch["position_ids"]}
    if packing == "mask":
        return {**inputs, "attention_mask": block_mask(batch["position_ids"])}
    boundaries = {"cu_seq_lens_q": batch["cu_seq_lens"], "max_length_q": batch["max_length"]}
    return {**inputs, **boundaries, "document_lengths": batch["lengths"]}


def cut_rows(ids: Tensor, lengths: Sequence[Sequence[int]]) -> PackedBatch:
    """Rows of token ids (packs, capacity) as documents of the given lengths, a row's in each list, that fill it.

    Raises `UserError` where they do not.
    """
    if len(lengths) != ids.shape[0] or any(sum(row) != ids.shape[1] or min(row) < 1 for row in lengths):
        raise UserError(f"packing: the documents' lengths do not fill {ids.shape[0]} rows of {ids.shape[1]} tokens")
    flat = [length for row in lengths for length in row]
    positions = torch.tensor([place for length in flat for place in range(length)]).view(ids.shape)
    return {
        "input_ids": ids,
        "labels": torch.where(positions == 0, IGNORE, ids),
        "position_ids": positions,
        "cu_seq_lens": torch.tensor([0, *accumulate(flat)], dtype=torch.int32),
        "max_length": max(flat),
        "lengths": flat,
        "targets": ids.numel() - len(flat),
    }


def random_documents(rows: int, tokens: int) -> list[list[int]]:
    """Lengths of the documents in each of `rows` rows: cut at random places, always the same ones."""
    rng = random.Random(0)
    cuts = [sorted(rng.sample(range(1, tokens), min(DOCUMENTS, tokens) - 1)) for _ in range(rows)]
    return [[end - start for start, end in zip([0, *row], [*row, tokens], strict=True)] for row in cuts]


def moved(batch: Batch, device: str | torch.device) -> Batch:
    """`batch` with its tensors on `device`."""
    if isinstance(batch, Tensor):
        return batch.to(device)
    out = batch.copy()
    for name in ("input_ids", "labels", "position_ids", "cu_seq_lens"):
        out[name] = batch[name].to(device)
    return out
