"""The two roofs of a device, measured: how fast it multiplies large matrices, and how fast it updates memory.

A roof is the best that was seen, not the median: what another process takes away is no property of the device.
"""

import torch

from .timing import time_steps


def matmul_rate(device: torch.device | str, dtype: torch.dtype, size: int = 2048, steps: int = 10) -> float:
    """Operations per second of a product of two square matrices, 2 x size^3 operations each."""
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    taken = time_steps(lambda _: a @ b, device, steps=steps, warmup=2)
    return 2 * size**3 / min(taken["step"].samples_s)


def update_rate(device: torch.device | str, size: int = 2**28, steps: int = 10) -> float:
    """Bytes per second of an update in place of `size` bytes, each read once and written once, as an optimizer does."""
    values = torch.ones(size // 4, dtype=torch.float32, device=device)
    taken = time_steps(lambda _: values.mul_(0.999), device, steps=steps, warmup=2)
    return 2 * size / min(taken["step"].samples_s)
