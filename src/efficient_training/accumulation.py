"""Gradient accumulation: one optimizer step from several forward and backward passes.

The gradient of a batch's mean loss is a sum over its tokens, so it can be added up from micro-batches, provided that
every micro-batch's summed loss is divided by the same number: the valid tokens of the whole window, over all ranks.
Chapter 4 of the book derives it, and shows what happens otherwise.
"""

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from .errors import UserError

IGNORED = -100
"""The label of a position that is not to be predicted, as in `torch.nn.functional.cross_entropy`."""


def accumulation_steps(batch: int, micro_batch: int, ranks: int = 1) -> int:
    """How many micro-batches each rank runs per optimizer step: batch / (micro_batch * ranks).

    `batch` and `micro_batch` are in sequences. Raises `UserError` where a size is not positive or the batch does not
    divide evenly.
    """
    if min(batch, micro_batch, ranks) < 1:
        raise UserError(
            f"batch {batch}, micro-batch {micro_batch} and ranks {ranks} must all be at least 1; correct the recipe"
        )
    unit = micro_batch * ranks
    steps, rest = divmod(batch, unit)
    if rest:
        near = f"{unit * steps} or {unit * (steps + 1)}" if steps else f"{unit}"
        raise UserError(
            f"a batch of {batch} sequences is no multiple of micro-batch {micro_batch} x {ranks} ranks; "
            f"use {near} sequences"
        )
    return steps


def micro_batches(batch: Mapping[str, Tensor], size: int) -> Iterator[dict[str, Tensor]]:
    """Cut every tensor of `batch` along dimension 0 into pieces of `size` sequences; the last may be shorter."""
    sequences = next(iter(batch.values())).shape[0]
    for start in range(0, sequences, size):
        yield {name: tensor[start : start + size] for name, tensor in batch.items()}


def valid_tokens(labels: Tensor) -> Tensor:
    """How many positions of `labels` (sequences, tokens) a causal language model predicts: a 0-d integer tensor.

    Such a model predicts each token from those before it, so a sequence's first position is never predicted, whatever
    its label. Counting it makes the gradient too small (huggingface/transformers#46204).
    """
    return labels[..., 1:].ne(IGNORED).sum()


def accumulate(
    model: nn.Module,
    window: Sequence[Mapping[str, Tensor]],
    *,
    tokens: Tensor | int | None = None,
    ranks: int = 1,
) -> Tensor:
    """Add the gradient of the window's mean loss per token to the parameters' `.grad`; return that loss, detached.

    `model` is a causal language model of transformers whose forward takes `num_items_in_batch` and then returns its
    summed loss divided by it; `window` holds its keyword arguments, `labels` among them, micro-batch by micro-batch.
    Each backward pass frees its micro-batch's activations, so one micro-batch's are held at a time.

    Data-parallel training that averages gradients over ranks needs both other arguments: `tokens`, the valid tokens of
    all ranks' windows together (default: this window's), and `ranks`, which undoes the averaging. The loss returned is
    then this rank's share, and the shares add up to the mean loss.

    Raises `ValueError` where the window has no valid token.
    """
    if tokens is None:
        tokens = torch.stack([valid_tokens(batch["labels"]) for batch in window]).sum()
    if int(tokens) < 1:
        raise ValueError("the window has no valid token: every label is -100 or a sequence's first")
    losses = []
    for batch in window:
        loss = model(**batch, num_items_in_batch=tokens).loss
        (loss * ranks).backward()
        losses.append(loss.detach())
    return torch.stack(losses).sum()
