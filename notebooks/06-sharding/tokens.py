"""The loss of a step whose ranks have unequal numbers of tokens: three ways to average it.

By hand: torchrun --standalone --nproc-per-node 2 tokens.py --lengths 120 8

Every rank computes the same three things on its own sequences under DDP; what one process computes on all of them is
the reference.
"""

import argparse
from typing import Any

from efficient_training.errors import UserError
from efficient_training.launch.worker import Worker, worker

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

VOCABULARY, WIDTH, POSITIONS = 64, 32, 128
IGNORED = -100  # the label of a position that has no target: padding, or a prompt


def build(device: torch.device) -> nn.Module:
    """Predicts a token from the one before."""
    torch.manual_seed(0)
    layers = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, VOCABULARY)
    return nn.Sequential(*layers).to(device)


def sequences(lengths: list[int]) -> tuple[Tensor, Tensor]:
    """A padded sequence for each rank, and its labels, of which `lengths` are valid. Each rank's text is of its own kind."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.stack(
        [torch.randint(0, VOCABULARY >> rank, (POSITIONS,), generator=generator) for rank in range(len(lengths))]
    )
    labels = ids.roll(-1, dims=1)
    for row, length in zip(labels, lengths):
        row[length:] = IGNORED
    return ids, labels


def summed(model: nn.Module, ids: Tensor, labels: Tensor) -> Tensor:
    """The sum of all tokens' losses, 0 where there is no token."""
    return F.cross_entropy(model(ids).flatten(0, -2), labels.flatten(), ignore_index=IGNORED, reduction="sum")


def mean_of_means(model: nn.Module, ids: Tensor, labels: Tensor) -> Tensor:
    """Wrong: each rank's own mean, of which DDP takes the mean. A token of a short sequence counts for more."""
    return summed(model, ids, labels) / (labels != IGNORED).sum()


def unscaled(model: nn.Module, ids: Tensor, labels: Tensor) -> Tensor:
    """Wrong: the right denominator, but DDP divides by the ranks once more."""
    return summed(model, ids, labels) / all_tokens(labels)


def token_mean(model: nn.Module, ids: Tensor, labels: Tensor) -> Tensor:
    """Right: over the tokens of all ranks, and times the ranks, as DDP divides by them."""
    return summed(model, ids, labels) * dist.get_world_size() / all_tokens(labels)


def all_tokens(labels: Tensor) -> Tensor:
    """Valid tokens on all ranks; with accumulation, give it the labels of all micro-batches of the step."""
    tokens = (labels != IGNORED).sum()
    dist.all_reduce(tokens)
    if tokens == 0:
        raise UserError("no rank has a token to learn from in this step: check the labels, or skip such batches")
    return tokens


def run(w: Worker, lengths: list[int]) -> None:
    """Report each loss's value, and how far its gradients are from one process's."""
    if len(lengths) != w.ranks:
        raise UserError(f"--lengths gives {len(lengths)} numbers of tokens for {w.ranks} ranks; give one for each")
    ids, labels = (whole.to(w.device) for whole in sequences(lengths))
    alone = build(w.device)
    loss = mean_of_means(alone, ids, labels)  # one process: all tokens, so one mean
    loss.backward()
    reference = torch.cat([weight.grad.flatten() for weight in alone.parameters()])
    w.report(of="tokens", way="one process", loss=loss.item(), error=0.0)

    for way in (mean_of_means, unscaled, token_mean):
        model = DistributedDataParallel(build(w.device))
        loss = way(model, ids[w.rank], labels[w.rank])
        loss.backward()
        gradient = torch.cat([weight.grad.flatten() for weight in model.parameters()])
        shown = loss.detach() / w.ranks  # DDP's view: the mean over ranks
        dist.all_reduce(shown)
        w.report(of="tokens", way=way.__name__, loss=shown.item(), error=distance(gradient, reference))


def distance(gradient: Tensor, reference: Tensor) -> float:
    """Relative, in the 2-norm."""
    return ((gradient - reference).norm() / reference.norm()).item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[120, 8], help="valid tokens of each rank")
    arguments: Any = parser.parse_args()
    with worker() as w:
        run(w, arguments.lengths)


if __name__ == "__main__":
    main()
