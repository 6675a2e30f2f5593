"""Import libraries that are noisy while they are imported, without the noise.

torchao and transformers together write lines on stderr that concern nobody who trains a model (compiled extensions that
were not loaded, deprecations inside of torch). In a notebook these would be output, and compared.
"""

import importlib
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from types import ModuleType


@contextmanager
def quiet() -> Iterator[None]:
    """Drop what is written on stderr in the block, by Python, by logging and by C code, and warnings; raise errors as ever.

    For imports only: `with quiet(): import torchao`.
    """
    disabled = logging.root.manager.disable
    with open(os.devnull, "w", encoding="utf-8") as nowhere, warnings.catch_warnings():  # noqa: PTH123  no path
        warnings.simplefilter("ignore")
        sys.stderr.flush()
        kept = os.dup(2)
        os.dup2(nowhere.fileno(), 2)
        logging.disable(logging.CRITICAL)
        try:
            with redirect_stderr(nowhere):
                yield
        finally:
            logging.disable(disabled)
            os.dup2(kept, 2)
            os.close(kept)


def imported(name: str) -> ModuleType:
    """The module `name`, imported quietly. Raises `ImportError` as an import does."""
    with quiet():
        return importlib.import_module(name)
