"""FSDP2 in units of one block, or the whole model as one unit: calls, gathered weights, and the peak of a step."""

from efficient_training.launch.worker import worker
from efficient_training.measure.communication import Communication
from efficient_training.measure.memory import MemoryTracker
from efficient_training.sharding.held import gathered
from efficient_training.sharding.strategies import ddp, fsdp, zero1

from model import arguments, batch, build, loss_of, make_optimizer, own
from torch.utils._python_dispatch import TorchDispatchMode

REPEATS = 5

WAYS = {
    "ddp": ddp,
    "zero1": ddp,
    "blocks": lambda model: fsdp(model, model.blocks),
    "blocks_default": lambda model: fsdp(model, model.blocks, reshard_after_forward=None),
    "blocks_kept": lambda model: fsdp(model, model.blocks, reshard_after_forward=False),
    "whole": fsdp,
}


class Gathered(TorchDispatchMode):
    """The most bytes of weights that FSDP2 had gathered at one time, looked at whenever it fills more of them."""

    def __init__(self, model):
        super().__init__()
        self.model, self.most = model, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "fsdp":
            self.most = max(self.most, gathered(self.model))
        return func(*args, **(kwargs or {}))


def steps(model, optimizer, tokens, targets, count):
    for _ in range(count):
        loss_of(model, tokens, targets).backward()
        optimizer.step()
        optimizer.zero_grad()


def peak(model, optimizer, tokens, targets):
    """The tracked peak of one step: the sum of its components, and the phase in which it stands."""
    with MemoryTracker(model, optimizer) as tracker:
        with tracker.phase("forward"):
            loss = loss_of(model, tokens, targets)
        with tracker.phase("backward"):
            loss.backward()
        with tracker.phase("optimizer step"):
            optimizer.step()
    model.zero_grad()
    fullest = tracker.peak
    return {"peak": fullest.bytes, "phase": fullest.phase, "components": dict(fullest.components)}


def run(w, sizes):
    # As few tokens as there can be: one a rank, so that the states are what the peak is made of.
    tokens, targets = (own(part, w) for part in batch(sizes["vocabulary"], w.ranks, length=1))
    for name, wrap in WAYS.items():
        model = wrap(build(sizes, w.device))
        optimizer = zero1(model.parameters(), make_optimizer) if name == "zero1" else make_optimizer(model.parameters())
        steps(model, optimizer, tokens, targets, 2)
        with Communication(floor=16) as communication, Gathered(model) as most:
            steps(model, optimizer, tokens, targets, 1)
        # The least of several: now and then a thread of gloo lets go of a buffer only after the next one is there.
        tracked = min(
            (peak(model, getattr(optimizer, "optim", optimizer), tokens, targets) for _ in range(REPEATS)),
            key=lambda one: one["peak"],
        )
        w.report(
            of="wrapping",
            name=name,
            calls=communication.calls,
            bytes=communication.bytes,
            gathered=most.most,
            **tracked,
        )


if __name__ == "__main__":
    sizes, *_ = arguments()
    with worker() as w:
        run(w, sizes)
