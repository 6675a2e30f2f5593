"""Imports without noise, and nothing silenced afterwards."""

import logging
import os
import sys

import pytest

from efficient_training.quiet import imported, quiet


def test_nothing_of_the_block_is_seen(capfd: pytest.CaptureFixture[str]) -> None:
    with quiet():
        print("python", file=sys.stderr)
        os.write(2, b"C code\n")
        logging.getLogger("noisy").warning("a log line")
    assert capfd.readouterr().err == ""


def test_a_handler_made_in_the_block_speaks_afterwards(capsys: pytest.CaptureFixture[str]) -> None:
    logger = logging.getLogger("efficient_training.tests.quiet")
    with quiet():
        handler = logging.StreamHandler()
        logger.addHandler(handler)
        logger.warning("before")
    logger.warning("after")
    logger.removeHandler(handler)
    assert capsys.readouterr().err == "after\n"


def test_errors_pass() -> None:
    with pytest.raises(ModuleNotFoundError):
        imported("no_such_module_anywhere")
