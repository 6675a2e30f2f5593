"""Import libraries that are noisy while they are imported, without the noise.

torchao and transformers together write lines on stderr that concern nobody who trains a model (compiled extensions that
were not loaded, deprecations inside of torch). In a notebook these would be output, and compared.
"""

import importlib
import io
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from types import ModuleType
from typing import TextIO


class _Muted(io.TextIOBase):
    """Drops what is written while `on`, and hands it to `stream` afterwards.

    For a library's log handler that is made in between keeps the stream for good.
    """

    def __init__(self, stream: TextIO) -> None:
        self.stream, self.on = stream, True

    def write(self, text: str) -> int:
        return len(text) if self.on else self.stream.write(text)

    def flush(self) -> None:
        self.stream.flush()


@contextmanager
def quiet() -> Iterator[None]:
    """Drop what the block writes on stderr, by Python, by logging and by C code, and warnings; raise errors as ever.

    For imports only: `with quiet(): import torchao`.
    """
    disabled = logging.root.manager.disable
    muted = _Muted(sys.stderr)
    with open(os.devnull, "w", encoding="utf-8") as nowhere, warnings.catch_warnings():  # noqa: PTH123  no path
        warnings.simplefilter("ignore")
        sys.stderr.flush()
        kept = os.dup(2)
        os.dup2(nowhere.fileno(), 2)
        logging.disable(logging.CRITICAL)
        try:
            with redirect_stderr(muted):
                yield
        finally:
            muted.on = False
            logging.disable(disabled)
            os.dup2(kept, 2)
            os.close(kept)


def imported(name: str) -> ModuleType:
    """The module `name`, imported quietly. Raises `ImportError` as an import does."""
    with quiet():
        return importlib.import_module(name)
