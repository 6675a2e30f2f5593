"""Whose memory it is that is being allocated: the device's, or the host's where a block says so.

A tensor's own device does not tell in a step on a CPU, real or fake, in which the CPU stands in for both.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_on_host: ContextVar[bool] = ContextVar("on_host", default=False)


@contextmanager
def in_host_memory() -> Iterator[None]:
    """What is allocated inside the block counts as the host's (`measure.memory.MemoryTracker`)."""
    token = _on_host.set(True)
    try:
        yield
    finally:
        _on_host.reset(token)


def on_host() -> bool:
    """Whether what is allocated now is the host's."""
    return _on_host.get()
