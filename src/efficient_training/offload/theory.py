"""Where DeepSpeed's stage 3 keeps a rank's state, by formula: the bytes that `held` finds in live tensors and files.

For bf16 weights with fp32 master weights and Adam, and gradients present: the instant before the optimizer step.
"""

from collections.abc import Sequence

from ..recipe import Offload
from .held import Held
from .swap import BUFFERS, SMALLEST, aligned, sub_groups, swap_plan

WEIGHT_BUFFERS = 5
"""Buffers on the host, of the size of the largest parameter, through which weights go (`buffer_count`)."""

SCALAR = 2
"""Bytes of the one number that stands for each weight that is on the disk."""


def expected(offload: Offload, sizes: Sequence[int], sub_group_size: int, *, block: int = SMALLEST) -> Held:
    """Bytes by place and component, of a rank whose parts of the parameters have `sizes` elements, in their order.

    Buffers (temporaries) have the sizes that they need at least: `buffer_size` that of the largest parameter.
    """
    if offload.endswith("nvme"):
        return _swapped(offload, sizes, sub_group_size, block)
    parameters = sum(sizes)
    weights = {"weights": 2 * parameters}
    states = {"optimizer state": 8 * parameters, "master weights": 4 * parameters}
    if offload == "none":
        steps = 4 * len(sub_groups(sizes, sub_group_size))  # torch's AdamW counts its steps in a tensor
        device = weights | states | {"gradients": 2 * parameters, "optimizer state": 8 * parameters + steps}
        return {"device": device, "host": {}, "disk": {}}
    # the sum of the micro-batches in bf16, and what the optimizer takes in fp32
    host = states | {"gradients": 6 * parameters}
    if offload == "optimizer":
        return {"device": weights, "host": host, "disk": {}}
    return {"device": {}, "host": host | weights, "disk": {}}


def _swapped(offload: Offload, sizes: Sequence[int], sub_group_size: int, block: int) -> Held:
    parameters = offload == "parameters-nvme"
    plan = swap_plan(sizes, sub_group_size, parameters=parameters, buffers=BUFFERS, block=block)
    host = dict(plan.stays)
    host["gradients"] += 2 * sum(sizes)
    host["temporaries"] = plan.buffers
    device = {}
    if parameters:
        largest = max(sub_groups(sizes, sub_group_size), key=sum)
        host["temporaries"] += WEIGHT_BUFFERS * aligned(2 * max(sizes)) + sum(aligned(2 * size) for size in largest)
        host["weights"] += SCALAR if plan.disk["weights"] else 0
    else:
        device["weights"] = host.pop("weights")
    places = {"device": device, "host": host, "disk": plan.disk}
    return {place: {name: size for name, size in parts.items() if size} for place, parts in places.items()}
