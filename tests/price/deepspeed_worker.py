"""One rank of a small model under each of DeepSpeed's stages: peaks by phase on real tensors. Run by `launch`."""

import contextlib
import functools
import gc
import json
import sys
from collections.abc import Container
from typing import Any

import torch

from efficient_training.launch.worker import worker
from efficient_training.losses import shift_labels
from efficient_training.measure.memory import MemoryTracker
from efficient_training.models import ModelShape
from efficient_training.ranks import WithLoss
from efficient_training.recipe import Recipe
from efficient_training.run import build_model
from efficient_training.sharding.engine import engine


def _run(shape: ModelShape, recipe: Recipe, sequence: int, bucket: int) -> dict[str, Any]:
    before = {one.untyped_storage().data_ptr() for one in _alive()}
    torch.manual_seed(0)
    mixed = recipe.precision == "bf16-mixed"
    whole = WithLoss(build_model(shape, recipe), recipe)
    if mixed:
        whole.to(torch.bfloat16)
    step = engine(whole, recipe.sharding, functools.partial(torch.optim.AdamW, lr=1e-4, fused=True), bf16=mixed,
                  micro_batch=recipe.micro_batch, bucket=bucket)  # fmt: skip
    ids = torch.randint(0, shape.vocab, (recipe.micro_batch, sequence))
    target = shift_labels(ids)
    tracker: MemoryTracker | None = None
    for number in range(3):
        last = number == 2
        if last:
            tracker = MemoryTracker(components={"master weights": _alive(before)})
            tracker.__enter__()
        with tracker.phase("forward") if tracker else contextlib.nullcontext():
            loss = step.model(ids, target) / ids.numel()
        with tracker.phase("backward") if tracker else contextlib.nullcontext():
            step.backward(loss)
        with tracker.phase("optimizer step") if tracker else contextlib.nullcontext():
            step.step()
        del loss
    assert tracker is not None
    tracker.__exit__(None, None, None)
    return {name: phase.peak.bytes for name, phase in tracker.phases.items() if name != "outside"}


def _alive(without: Container[int] = ()) -> list[torch.Tensor]:
    """All floating-point tensors that Python knows now, but for those at these addresses."""
    gc.collect()
    found = [one for one in gc.get_objects() if isinstance(one, torch.Tensor) and one.is_floating_point()]
    there = [one for one in found if not one.is_meta and one.untyped_storage().nbytes()]
    return [one for one in there if one.untyped_storage().data_ptr() not in without]


if __name__ == "__main__":
    cases = json.loads(sys.argv[1])
    with worker() as own:
        for shape, recipe, sequence, bucket in cases:
            own.report(**_run(ModelShape(*shape), Recipe(**recipe), sequence, bucket))
