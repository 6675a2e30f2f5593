"""The two roofs of a device, measured: how fast it multiplies large matrices, and how fast it updates memory.

A roof is the best that was seen, not the median: what another process takes away is no property of the device.
"""

from collections.abc import Callable

import torch

from .timing import time_steps


def matmul_rate(device: torch.device | str, dtype: torch.dtype, size: int = 2048, steps: int = 10) -> float:
    """Operations per second of a product of two square matrices, 2 x size^3 operations each."""
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    taken = time_steps(lambda _: a @ b, device, steps=steps, warmup=2)
    return 2 * size**3 / min(taken["step"].samples_s)


def update_rate(device: torch.device | str, size: int = 2**28, steps: int = 10) -> float:
    """Bytes per second of an update in place of tensors of `size` bytes, as an optimizer makes it: the better of two.

    In one a tensor is read and written, in the other two more are read, since it depends on the processor how many
    tensors have to be on their way at once for the highest rate.
    """
    values, *others = torch.ones(3, size // 4, dtype=torch.float32, device=device)

    def rate(update: Callable[[], object], accesses: int) -> float:
        taken = time_steps(lambda _: update(), device, steps=steps, warmup=2)
        return accesses * size / min(taken["step"].samples_s)

    return max(rate(lambda: values.mul_(0.999), 2), rate(lambda: values.addcmul_(*others), 4))
