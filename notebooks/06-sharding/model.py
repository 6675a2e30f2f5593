"""The model, the batch and the optimizer that all workers of this chapter share: plain PyTorch, nothing sharded."""

import argparse
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

make_optimizer = partial(torch.optim.AdamW, lr=1e-3)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Model(nn.Module):
    """Predicts the next token from the last one. A vocabulary that no number of ranks divides shows the padding."""

    def __init__(self, width=128, blocks=4, vocabulary=257):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def build(sizes, device="cpu"):
    """The same weights on every rank."""
    torch.manual_seed(0)
    return Model(**sizes).to(device)


def units(model):
    """Shapes of the parameters, unit by unit as FSDP wraps them: what is outside of the blocks, and each block."""
    inside = [list(block.parameters()) for block in model.blocks]
    known = {id(parameter) for unit in inside for parameter in unit}
    outside = [parameter for parameter in model.parameters() if id(parameter) not in known]
    return [[tuple(parameter.shape) for parameter in unit] for unit in (outside, *inside)]


def batch(vocabulary, sequences, length=32):
    """Tokens, and for each the next one."""
    tokens = torch.randint(vocabulary, (sequences, length + 1), generator=torch.Generator().manual_seed(1))
    return tokens[:, :-1], tokens[:, 1:]


def own(tensor, worker):
    """This rank's equal part of a batch."""
    return tensor.chunk(worker.ranks)[worker.rank].to(worker.device)


def loss_of(model, tokens, targets):
    return F.cross_entropy(model(tokens).flatten(0, 1).float(), targets.flatten())


def arguments(parser=None):
    """Sizes of the model, sequences of a step, and steps, from the command line, which the notebook's parameters give."""
    parser = parser or argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--blocks", type=int, default=4)
    parser.add_argument("--vocabulary", type=int, default=257)
    parser.add_argument("--sequences", type=int, default=8)
    parser.add_argument("--steps", type=int, default=5)
    options = parser.parse_args()
    sizes = {"width": options.width, "blocks": options.blocks, "vocabulary": options.vocabulary}
    return sizes, options.sequences, options.steps, options
