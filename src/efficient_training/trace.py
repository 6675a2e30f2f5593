"""The ledger of a CUDA training step without the hardware: the real loop, run on fake tensors.

Fake tensors have shapes, dtypes and storages, but no data, so that the step of a 70B model needs neither its memory nor
its time. Deep models are not even built: two shallow ones are traced, and what a block adds is added for the others.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any, Literal

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from .cuda_rules import as_on_cuda
from .errors import UserError
from .fake_optimizers import steps_on_fakes
from .fake_ranks import one_of
from .ledger import PHASES, Ledger
from .measure.memory import MemoryTracker
from .measure.samples import Sample
from .models import ModelShape
from .packing.window import Batch
from .quantization import quantized_state
from .recipe import FSDP, Recipe, accumulation_steps
from .run import Trainer, build_trainer, random_batch
from .workload import Workload

Kernels = Literal["cuda", "cpu"]
Timeline = dict[str, list[Sample]]
Build = Callable[[ModelShape, Recipe], Trainer]

SHALLOW_SEGMENTS, SHALLOW_UNITS = 3, 4
"""Checkpointed segments of the shallower trace: a first, a last, and one between; under FSDP2 two, as those between
differ from both ends: they find one unit being reduced, and have another gathered ahead; and with an adapter, as the
first block's input needs no gradient."""


HALVINGS = 17
"""Steps after which a gradient scaler that begins at 2^16 scales by 1/2."""


class _FakeScaler(torch.amp.GradScaler):
    """A gradient scaler that always steps: fake tensors have no values in which an overflow could be found."""

    def _maybe_opt_step(self, optimizer: Any, optimizer_state: Any, *args: Any, **kwargs: Any) -> Any:
        return optimizer.step(*args, **kwargs)


def track_step(trainer: Trainer, window: Sequence[Batch], vocabulary: int, *, warmed: bool = False) -> Timeline:
    """Samples of one step in its steady state, by phase; of an accumulated one, its last micro-batch.

    A step is run before it, unless it is `warmed`, so that the optimizer has its state, and several ranks their
    buffers; and under accumulation the micro-batches before the last, so that gradients are there from the start, as
    they are for all but the first.
    """
    kept: list[torch.Tensor] = []

    @contextmanager
    def before(name: str) -> Iterator[None]:
        if name == "optimizer step":
            kept[:] = trainer.buckets()
        yield

    for _ in range(_warmup(trainer.recipe, warmed)):
        trainer.step(window, before)
    _settle_scale(trainer, window)
    tracker = MemoryTracker(
        trainer.model,
        trainer.states,
        vocabulary=vocabulary,
        components={"gradients": kept, "weights": quantized_state(trainer.model)},
        watched=trainer.watched(),
        host=trainer.on_host,
    )
    kept.clear()
    seen = {"forward": 0}

    @contextmanager
    def phase(name: str) -> Iterator[None]:
        if name == "forward":
            seen["forward"] += 1
            if seen["forward"] == len(window):
                tracker.__enter__()
        with tracker.phase(name) if seen["forward"] == len(window) else nullcontext():
            yield

    trainer.step(window, phase)
    tracker.__exit__(None, None, None)
    timeline: Timeline = {name: [] for name in PHASES}
    for sample in tracker.timeline:
        if sample.phase in timeline:
            timeline[sample.phase].append(sample)
    return timeline


def _settle_scale(trainer: Trainer, window: Sequence[Batch]) -> None:
    """Steps until one is taken: a gradient scaler passes over those that overflow, and halves the scale each time."""
    if trainer.scaler is not None:
        for _ in range(HALVINGS):
            if trainer.states.state:
                break
            trainer.step(window)


def _warmup(recipe: Recipe, warmed: bool) -> int:
    """Steps before the one that is tracked; DDP allocates its buckets anew in the second."""
    if recipe.sharding in ("ddp", "zero1"):
        return 2
    return 0 if warmed and recipe.ranks == 1 else 1


def ledger_of(timeline: Timeline, view: Literal["run", "traced"]) -> Ledger:
    """The ledger of a timeline: each phase at the instant of its peak in that place, the first where there are
    several."""
    device = {name: dict(max(samples, key=lambda one: one.bytes).components) for name, samples in timeline.items()}
    host = {name: dict(max(samples, key=lambda one: one.host_bytes).host) for name, samples in timeline.items()}
    return Ledger(view, {"device": device, "host": host} if any(host.values()) else {"device": device})


def trace_timeline(
    shape: ModelShape, workload: Workload, recipe: Recipe, kernels: Kernels, build: Build = build_trainer
) -> Timeline:
    """Trace a model of `shape` as it stands, all of its layers, in the loop that `build` makes.

    Raises `UserError` for a compiled model, which has fused kernels in place of operators.
    """
    if recipe.compile:
        raise UserError("trace: a compiled model has no operators to trace; run it instead, or set compile: false")
    steps = min(accumulation_steps(workload, recipe), 2)
    on_cuda = as_on_cuda() if kernels == "cuda" else nullcontext()
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with one_of(recipe, shape), fake, steps_on_fakes(recipe.algorithm), on_cuda:
        trainer = build(shape, recipe)
        if trainer.scaler is not None:
            trainer.scaler = _FakeScaler("cpu")
        window = [random_batch(replace(workload, model=shape), recipe) for _ in range(steps)]
        if recipe.ranks == 1:
            _give_state(trainer)
        return track_step(trainer, window, shape.vocab, warmed=recipe.ranks == 1)


def _give_state(trainer: Trainer) -> None:
    """What a whole step leaves behind on one rank, the optimizer's state, for a third of a trace's time less."""
    for parameter in trainer.model.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.empty_like(parameter)
    if trainer.scaler is not None:
        trainer.scaler.scale(torch.zeros(()))
    trainer.update()
    trainer.optimizer.zero_grad(set_to_none=True)


def trace(
    workload: Workload,
    recipe: Recipe,
    kernels: Kernels = "cuda",
    build: Build = build_trainer,
) -> Ledger:
    """The ledger of `recipe` for `workload`: with CUDA's attention kernels, or with those of the CPU.

    The bytes at each instant are affine in the number of segments of blocks, so that two shallow models, one segment
    apart, give those of any deeper one: instants are matched from the start of a phase and from its end, and the peak
    is the largest. In between, what a segment adds is the same for each, so no instant there exceeds both ends.
    `build` may give another loop. Raises `UserError` as `trace_timeline`.
    """
    return ledger_of(deep_timeline(workload, recipe, kernels, build), "traced")


def deep_timeline(
    workload: Workload, recipe: Recipe, kernels: Kernels = "cuda", build: Build = build_trainer
) -> Timeline:
    """The instants of a step among which each phase's peak is: all of a shallow model, both ends of a deep one."""
    shape, every = workload.model, recipe.checkpoint_every
    ends_differ = recipe.sharding in FSDP or recipe.adapter != "none"
    shallow = (SHALLOW_UNITS if ends_differ else SHALLOW_SEGMENTS) * every + shape.layers % every
    # ZeRO-1 gives whole parameters to ranks, largest first: how many fall to one is not affine in the layers.
    if shape.layers <= shallow + every or recipe.sharding == "zero1":
        return trace_timeline(shape, workload, recipe, kernels, build)
    few, more = (
        trace_timeline(replace(shape, layers=layers), workload, recipe, kernels, build)
        for layers in (shallow, shallow + every)
    )
    further = (shape.layers - shallow) // every
    return {name: _extrapolate(few[name], more[name], further) for name in PHASES}


def _extrapolate(few: Sequence[Sample], more: Sequence[Sample], further: int) -> list[Sample]:
    """The samples at both ends of a phase, of a model with `further` segments more than `few`, one less than `more`."""
    pairs = _matched(few, more) + _matched(few[::-1], more[::-1])[::-1]
    return [affine(a, b, further) for a, b in pairs]


def _matched(few: Sequence[Sample], more: Sequence[Sample]) -> list[tuple[Sample, Sample]]:
    """Samples of the same instants, from the start up to the last segment but one of `few`.

    The operators are the same up to where `few` leaves its last segment and `more` enters another. A few more may agree
    by chance, as what follows the blocks begins like a block; so the last segment is left out, to be matched from the
    other side.
    """
    pairs = list(zip(few, more, strict=False))
    same = next((n for n, (a, b) in enumerate(pairs) if a.operator != b.operator), len(pairs))
    return pairs[: max(0, same - (len(more) - len(few)))]


def affine(few: Sample, more: Sample, further: int) -> Sample:
    """The sample `further` steps from `few`, of which `more` is the first: all bytes change alike from step to step."""
    return replace(
        few,
        components=_affine(few.components, more.components, further),
        host=_affine(few.host, more.host, further),
    )


def _affine(few: Mapping[str, int], more: Mapping[str, int], further: int) -> dict[str, int]:
    names = [*few, *(name for name in more if name not in few)]
    return {name: few.get(name, 0) + further * (more.get(name, 0) - few.get(name, 0)) for name in names}
