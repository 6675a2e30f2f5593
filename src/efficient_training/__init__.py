"""Efficient Training: the instruments behind the book, and the tools that run and render it."""

import logging

__version__ = "0.1.0"

NOISE = ("Failed to load", "is an Enum subclass and is now natively supported")


class _ImportNoise(logging.Filter):
    """Drops what torchao and bitsandbytes, once installed, make each import of transformers say on stderr."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not any(part in str(record.msg) for part in NOISE)


for _name in ("torchao", "torch.utils._pytree", "bitsandbytes.backends.cpu.ops"):
    logging.getLogger(_name).addFilter(_ImportNoise())
