"""What CUDA's caching allocator must at least reserve where FSDP2 works on several streams.

A freed block can be used again only by the stream that asked for it (`c10/cuda/CUDACachingAllocator.cpp`: pools are
kept by stream), unless the device is full and the cache is emptied. So what is reserved is at least the sum of the
streams' own peaks, which do not come at the same time. Fragmentation and rounding come on top.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from .algebra import Evaluator, Size
from .plan import plan
from .step import run_step
from .words import Words


def stream_peaks(words: Words, sizes: Mapping[str, Any]) -> dict[str, int]:
    """Bytes at the peak of each stream; none but under FSDP2."""
    value = Evaluator(sizes)
    peaks: dict[str, int] = {}
    for components in _instants(words):
        for stream, size in components:
            peaks[stream] = max(peaks.get(stream, 0), value(size))
    return peaks


@lru_cache(maxsize=64)
def _instants(words: Words) -> list[list[tuple[str, Size]]]:
    return [list(instant.components.items()) for instant in run_step(words, plan(words)).by_stream]
