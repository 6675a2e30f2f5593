"""A model of a matrix product's time in bf16 and in fp8, from a device's rates: casts cost what fp8 must gain."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Rates:
    """A device: FLOP/s of dense products in bf16 and in fp8, bytes/s of its memory, seconds to start a kernel."""

    bf16: float
    fp8: float
    memory: float
    launch: float = 3e-6


def gemm_seconds(m: int, n: int, k: int, rates: Rates, *, fp8: bool, weight_cast: bool = True) -> float:
    """A model of the product of (m, k) and (k, n), written in bf16: the slower of arithmetic and memory, and a launch.

    In fp8 each operand that must be cast is read for its amax, and read again and written in a byte; that is two
    kernels for each. `weight_cast=False` is a weight that was cast before, for an earlier micro-batch.
    """
    width, rate = (1, rates.fp8) if fp8 else (2, rates.bf16)
    product = max(2 * m * n * k / rate, (width * (m * k + k * n) + 2 * m * n) / rates.memory) + rates.launch
    if not fp8:
        return product
    cast = [m * k] + ([k * n] if weight_cast else [])
    return product + sum(5 * elements / rates.memory + 2 * rates.launch for elements in cast)


def smallest_winner(rates: Rates, *, step: int = 128, limit: int = 2**15) -> int | None:
    """The smallest m = n = k, a multiple of `step`, that is faster in fp8, casts included; `None` up to `limit`."""
    for size in range(step, limit + 1, step):
        if gemm_seconds(size, size, size, rates, fp8=True) < gemm_seconds(size, size, size, rates, fp8=False):
            return size
    return None
