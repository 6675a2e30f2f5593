"""A window of micro-batches: what is sent, and what gradients take meanwhile, with synchronization off until the last."""

import warnings
from contextlib import nullcontext

from efficient_training.launch.worker import worker
from efficient_training.measure.communication import Communication
from efficient_training.sharding.held import held, storage_bytes
from efficient_training.sharding.strategies import shard
from efficient_training.sharding.synchronization import no_sync, set_requires_gradient_sync

from model import arguments, batch, build, loss_of, make_optimizer, own
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

STEPS, MICRO_BATCHES = 3, 4


def reduce_each(model, last):
    return nullcontext()


def ddp_way(model, last):
    return nullcontext() if last else model.no_sync()


def fsdp2_way(model, last):
    model.set_requires_gradient_sync(last)
    return nullcontext()


def fsdp2_way_gathered(model, last):
    model.set_reshard_after_backward(last)  # the weights stay gathered between micro-batches, too
    return fsdp2_way(model, last)


def guarded(model, last):
    """Often seen, written for DDP: where there is no `no_sync`, it does nothing and says nothing."""
    return nullcontext() if last or not hasattr(model, "no_sync") else model.no_sync()


def warned(model, last):
    """The same words under the package's own function, which does what they mean and warns."""
    return nullcontext() if last else no_sync(model)


WAYS = {
    "ddp.each": ("ddp", reduce_each),
    "ddp.last": ("ddp", ddp_way),
    "fsdp.each": ("fsdp", reduce_each),
    "fsdp.last": ("fsdp", fsdp2_way),
    "fsdp.last_gathered": ("fsdp", fsdp2_way_gathered),
    "fsdp.guarded": ("fsdp", guarded),
    "fsdp.warned": ("fsdp", warned),
}


def one_process(w, sizes):
    """The gradients of the first step, of all ranks' sequences at once, without accumulation."""
    model = build(sizes, w.device)
    tokens, targets = (part.to(w.device) for part in batch(sizes["vocabulary"], 4 * MICRO_BATCHES))
    loss_of(model, tokens, targets).backward()
    return [parameter.grad for parameter in model.parameters()]


def furthest(model, reference):
    """The largest difference of a gradient's element from the reference's, relative to its parameter's largest one."""
    gradients = (parameter.grad for parameter in model.parameters())
    whole = (gradient.full_tensor() if isinstance(gradient, DTensor) else gradient for gradient in gradients)
    return max(
        ((one - right).abs().max() / right.abs().max()).item() for one, right in zip(whole, reference, strict=True)
    )


def accumulate(w, strategy, context, sizes, reference):
    """Steps of several micro-batches: of the first, how far its gradients are from the reference's; of the last, the
    collectives, and the bytes held before the last micro-batch."""
    model = build(sizes, w.device)
    sharded = shard(model, strategy, make_optimizer, blocks=model.blocks)
    model = sharded.model
    tokens, targets = (own(part, w).chunk(MICRO_BATCHES) for part in batch(sizes["vocabulary"], 4 * MICRO_BATCHES))
    for step in range(STEPS):
        with Communication(floor=16) if step == STEPS - 1 else nullcontext() as communication:
            for number in range(MICRO_BATCHES):
                last = number == MICRO_BATCHES - 1
                if last:
                    states = held(model, sharded.optimizer)
                with context(model, last):
                    (loss_of(model, tokens[number], targets[number]) / MICRO_BATCHES).backward()
        if step == 0:
            off = furthest(model, reference)
        sharded.step()
    return {
        "calls": communication.calls,
        "bytes": communication.bytes,
        "gradients": states["gradients"],
        "off": off,
    }


def buckets(w, sizes, view):
    """Bytes of DDP's buckets that are not the gradients themselves, with and without `gradient_as_bucket_view`."""
    model = DistributedDataParallel(build(sizes, w.device), gradient_as_bucket_view=view)
    tokens, targets = (own(part, w) for part in batch(sizes["vocabulary"], 8))
    seen = []

    def hook(group, bucket):
        seen.append(bucket.buffer())
        return allreduce_hook(group, bucket)

    model.register_comm_hook(None, hook)
    for _ in range(STEPS):
        model.zero_grad()
        seen.clear()
        loss_of(model, tokens, targets).backward()
    gradients = set()
    storage_bytes((parameter.grad for parameter in model.parameters()), gradients)
    w.report(of="buckets", name="views" if view else "copies", beside=storage_bytes(seen, gradients))


def run(w, sizes):
    for view in (False, True):
        buckets(w, sizes, view)
    reference = one_process(w, sizes)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for name, (strategy, context) in WAYS.items():
            caught.clear()
            found = accumulate(w, strategy, context, sizes, reference)
            w.report(
                of="accumulate", name=name, warnings=sorted({warning.category.__name__ for warning in caught}), **found
            )
        model = shard(build(sizes, w.device), "ddp", make_optimizer).model
        caught.clear()
        set_requires_gradient_sync(model, False)
        names = sorted({warning.category.__name__ for warning in caught})
        w.report(of="accumulate", name="ddp.warned", warnings=names, on=model.require_backward_grad_sync)


if __name__ == "__main__":
    sizes, *_ = arguments()
    with worker() as w:
        run(w, sizes)
