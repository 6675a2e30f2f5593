"""Packed batches: rows of several documents, with what a model needs to keep them apart.

A document in a row is a sequence of its own if three things hold: its positions start at 0, its tokens attend to no
other document, and its first token is nobody's target. `packed_batch` makes such rows; `model_inputs` refuses others.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, TypedDict

import torch
from torch import Tensor

from ..errors import UserError
from ..losses import IGNORE

Sample = Mapping[str, Sequence[int]]


class PackedBatch(TypedDict):
    """What `packed_batch` returns: three tensors (packs, capacity), and where documents lie in the joined rows.

    `targets` are the labels that are not ignored, counted.
    """

    input_ids: Tensor
    labels: Tensor
    position_ids: Tensor
    cu_seq_lens: Tensor
    max_length: int
    lengths: list[int]
    targets: int


def packed_batch(packs: Sequence[Sequence[Sample]], capacity: int | None = None, *, pad: int = 0) -> PackedBatch:
    """Rows of `capacity` tokens (default: those of the longest pack), one for each pack.

    A sample holds `input_ids` and may hold `labels` of the same length, its tokens otherwise. Returned are, each
    (packs, capacity): `input_ids`; `labels`, with the first token of each document ignored, since the last of the
    document before would have to predict it; `position_ids`, which start again in each document. And for kernels that
    take lengths, over all rows joined: `cu_seq_lens`, the documents' boundaries (documents + 1,), int32, their
    `lengths`, and `max_length`. What is left of a row is a document of `pad` tokens without targets.

    Raises `UserError` where a sample is empty, its labels have another length, or a pack has more than `capacity`
    tokens.
    """
    if not packs or not all(packs):
        raise UserError("packing: a batch needs at least one pack, and each pack at least one sequence")
    sizes = [sum(_length(row, number, sample) for number, sample in enumerate(pack)) for row, pack in enumerate(packs)]
    width = max(sizes) if capacity is None else capacity
    for row, size in enumerate(sizes):
        if size > width:
            raise UserError(
                f"packing: pack {row} has {size} tokens, more than its capacity of {width}; "
                "move a sequence to another pack, or take a larger capacity"
            )
    ids: list[int] = []
    labels: list[int] = []
    positions: list[int] = []
    lengths: list[int] = []
    for samples, size in zip(packs, sizes, strict=True):
        for sample in samples:
            tokens = list(sample["input_ids"])
            ids += tokens
            labels += [IGNORE, *sample.get("labels", tokens)[1:]]
            positions += range(len(tokens))
            lengths.append(len(tokens))
        if size < width:
            ids += [pad] * (width - size)
            labels += [IGNORE] * (width - size)
            positions += range(width - size)
            lengths.append(width - size)
    shape = (len(packs), width)
    return {
        "input_ids": torch.tensor(ids).view(shape),
        "labels": torch.tensor(labels).view(shape),
        "position_ids": torch.tensor(positions).view(shape),
        "cu_seq_lens": torch.tensor([0, *accumulate(lengths)], dtype=torch.int32),
        "max_length": max(lengths),
        "lengths": lengths,
        "targets": len(labels) - labels.count(IGNORE),
    }


def _length(pack: int, number: int, sample: Sample) -> int:
    length = len(sample["input_ids"])
    if not length:
        raise UserError(f"packing: sequence {number} of pack {pack} is empty; drop it before packing")
    if len(sample.get("labels", sample["input_ids"])) != length:
        raise UserError(f"packing: sequence {number} of pack {pack} has {length} tokens and not as many labels")
    return length


def model_inputs(batch: Mapping[str, Any]) -> dict[str, Any]:
    """The keyword arguments with which a causal language model of transformers keeps a packed batch's documents apart.

    transformers finds the documents by their positions, but only without a 2-D attention mask and without a cache
    (`use_cache` is true by default). The boundaries are handed on too, under the names of its flash attention.

    Raises `UserError` where the positions are missing, a document's first token is a target, or there is an attention
    mask; and, of a batch that has its boundaries (`cu_seq_lens`), where the positions go on across one.
    """
    if "position_ids" not in batch:
        raise UserError(
            "packed batch: position_ids are missing, so that the model takes each row for one document; "
            "number the tokens of each document from 0, as packed_batch does"
        )
    if batch.get("attention_mask") is not None:
        raise UserError(
            "packed batch: with an attention_mask transformers looks for no documents in position_ids; leave it out"
        )
    positions, labels = batch["position_ids"], batch["labels"]
    begins = document_starts(positions)
    if "cu_seq_lens" in batch:
        given = torch.zeros(positions.numel(), dtype=torch.bool, device=positions.device)
        given[batch["cu_seq_lens"][:-1].long()] = True
        if not torch.equal(given.view_as(begins), begins):
            raise UserError(
                "packed batch: position_ids do not start again where cu_seq_lens has a document; reset them"
            )
    if (labels[begins] != IGNORE).any():
        raise UserError(
            f"packed batch: the first token of a document is a target; set its label to {IGNORE}, "
            "or the document before it has to predict it"
        )
    inputs = {name: batch[name] for name in ("input_ids", "labels", "position_ids")}
    if "cu_seq_lens" in batch:
        for side in ("q", "k"):
            inputs[f"cu_seq_lens_{side}"], inputs[f"max_length_{side}"] = batch["cu_seq_lens"], batch["max_length"]
    return {**inputs, "use_cache": False}


def document_starts(position_ids: Tensor) -> Tensor:
    """True where a document starts, (rows, tokens): at the start of a row, and where a position is not the next one."""
    starts = torch.ones_like(position_ids, dtype=torch.bool)
    starts[:, 1:] = position_ids.diff(dim=1) != 1
    return starts


def block_mask(position_ids: Tensor) -> Tensor:
    """True where a token may attend, (rows, 1, tokens, tokens): to itself and what is before it in its document.

    One byte for each pair of tokens in a row; attention kernels make a mask of numbers of it.
    """
    document = document_starts(position_ids).cumsum(1)
    same = document[:, :, None] == document[:, None, :]
    return same.tril_()[:, None]
