"""The training loop of most scripts: the model computes its own loss, and its `outputs` live through the whole step.

It is here to be measured beside `run.Trainer`, which drops the logits as soon as the loss is known.
"""

from collections.abc import Sequence
from typing import Any, cast

import torch

from .errors import UserError
from .models import ModelShape
from .packing.window import Batch
from .recipe import Recipe
from .run import AUTOCAST, PhaseContext, Trainer, build_trainer, no_phase


class PlainTrainer(Trainer):
    """A `Trainer` whose step is the plain loop; its loss is the one in transformers, whatever the recipe's `loss`."""

    def step(self, window: Sequence[Batch], phase: PhaseContext = no_phase) -> torch.Tensor:
        """One optimizer step over a window of micro-batches (sequences, tokens); the mean of their mean losses."""
        dtype, model = AUTOCAST.get(self.recipe.precision), cast(Any, self.model)
        losses = []
        for ids in window:
            assert isinstance(ids, torch.Tensor)
            with phase("forward"), self.saving, torch.autocast(ids.device.type, dtype, enabled=dtype is not None):
                outputs = model(input_ids=ids, labels=ids)
                loss = outputs.loss / len(window)
            with phase("backward"):
                (self.scaler.scale(loss) if self.scaler else loss).backward()
            losses.append(loss.detach())
        with phase("optimizer step"):
            self.update()
        self.optimizer.zero_grad(set_to_none=True)
        return torch.stack(losses).sum()


def build_plain(shape: ModelShape, recipe: Recipe, device: str | torch.device = "cpu") -> PlainTrainer:
    """As `build_trainer`, with the plain loop. Raises `UserError` with packing, which it does not take."""
    if recipe.packing != "none":
        raise UserError(f"run: the plain loop takes no packed batches; set packing: none, got {recipe.packing}")
    made = build_trainer(shape, recipe, device)
    return PlainTrainer(made.model, made.optimizer, made.recipe, made.scaler, made.saving)
