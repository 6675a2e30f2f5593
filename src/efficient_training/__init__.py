"""Efficient Training: the instruments behind the book, and the tools that run and render it."""

import atexit
import gc
import logging

__version__ = "0.1.0"

# What is alive at exit is left to the system: collecting torch's and transformers' modules would take a second.
atexit.register(gc.freeze)

NOISE = ("Failed to load", "is an Enum subclass and is now natively supported", "Setting accelerator to CPU")


class _ImportNoise(logging.Filter):
    """Drops what torchao, bitsandbytes and DeepSpeed, once installed, make other imports say on stderr."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not any(part in str(record.msg) for part in NOISE)


for _name in ("torchao", "torch.utils._pytree", "bitsandbytes.backends.cpu.ops", "DeepSpeed"):
    logging.getLogger(_name).addFilter(_ImportNoise())
