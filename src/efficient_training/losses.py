"""Next-token cross-entropy over a language model's head, in three forms that differ in what they keep.

Each takes the hidden states and the head's weight, so that the form that never holds all logits can be one of them.
"""

from typing import Any

import torch
import torch.nn.functional as F

from .chunks import chunk_rows
from .recipe import Loss

IGNORE = -100
"""The label of a token that takes no part in the loss, as in torch and transformers."""


def shift_labels(labels: torch.Tensor) -> torch.Tensor:
    """Labels (batch, tokens) moved so that each token is to predict the next; the last predicts nothing."""
    return F.pad(labels, (0, 1), value=IGNORE)[..., 1:].contiguous()


def token_loss_sum(hidden: torch.Tensor, head: torch.Tensor, labels: torch.Tensor, form: Loss) -> torch.Tensor:
    """The loss summed over tokens: hidden (batch, tokens, h), head (vocabulary, h), shifted labels (batch, tokens).

    `upcast` is what transformers computes: fp32 logits. `native` leaves the logits in the precision of the head, under
    autocast too, which would otherwise widen them, and adds up the tokens' losses in fp32.
    `chunked` goes through the tokens in chunks and keeps the gradients of `hidden` and `head` instead of logits
    (`ChunkedCrossEntropy`).
    """
    flat, targets = hidden.reshape(-1, hidden.shape[-1]), labels.reshape(-1)
    if form == "chunked":
        return _chunked(flat, head, targets)
    logits = F.linear(flat, head)
    if form == "upcast":
        logits = logits.float()
        return F.cross_entropy(logits, targets, ignore_index=IGNORE, reduction="sum")
    with torch.autocast(logits.device.type, enabled=False):
        # Added up in fp32: a sum over thousands of tokens overflows in fp16, and is coarse in bf16.
        return F.cross_entropy(logits, targets, ignore_index=IGNORE, reduction="none").float().sum()


def _chunked(flat: torch.Tensor, head: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    device = flat.device.type
    compute = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else flat.dtype
    return ChunkedCrossEntropy.apply(flat.to(compute), head, targets)  # type: ignore[no-any-return]


class ChunkedCrossEntropy(torch.autograd.Function):
    """Summed cross-entropy of hidden (tokens, h) against targets (tokens,), through a head (vocabulary, h), in chunks.

    The gradient of a loss is known as soon as the loss is: softmax minus one-hot. So the forward pass computes both
    gradients chunk by chunk, and the backward pass only scales them. Between the two it keeps tokens x h and
    vocabulary x h elements, instead of tokens x vocabulary. Logits are computed in the dtype of `hidden`, softmax and
    loss in fp32; the head's gradient is added up in the head's own dtype.
    """

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, head: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the loss, a 0-d fp32 tensor, and keep both gradients."""
        weight = head.to(hidden.dtype)
        total = torch.zeros((), dtype=torch.float32, device=hidden.device)
        hidden_grad = torch.empty_like(hidden)
        head_grad = torch.zeros_like(head) if ctx.needs_input_grad[1] else None
        rows = chunk_rows(head.shape[0])
        for start in range(0, hidden.shape[0], rows):
            part = hidden[start : start + rows]
            target = targets[start : start + rows]
            valid = target != IGNORE
            index = torch.where(valid, target, 0).unsqueeze(1)
            log_probabilities = torch.log_softmax(part.mm(weight.t()).float(), dim=1)
            total -= torch.where(valid, log_probabilities.gather(1, index).squeeze(1), 0.0).sum()
            grad = log_probabilities.exp_()
            grad.scatter_add_(1, index, grad.new_full(index.shape, -1.0))
            grad *= valid.unsqueeze(1)
            grad16 = grad.to(hidden.dtype)
            torch.mm(grad16, weight, out=hidden_grad[start : start + rows])
            if head_grad is not None:
                head_grad += grad16.t().mm(part)
            del log_probabilities, grad, grad16
        ctx.save_for_backward(hidden_grad, head_grad)
        return total

    @staticmethod
    def backward(ctx: Any, *outputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None, None]:
        """Scale the kept gradients, in place: the graph is used once."""
        hidden_grad, head_grad = ctx.saved_tensors
        return hidden_grad.mul_(outputs[0]), None if head_grad is None else head_grad.mul_(outputs[0]), None
