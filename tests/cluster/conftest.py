"""One private SLURM for all tests of this folder, where it is installed."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from private_slurm import PrivateSlurm, missing


@pytest.fixture(scope="session")
def _cluster() -> Iterator[PrivateSlurm]:
    lacking = missing()
    if lacking:
        pytest.skip(f"needs SLURM and munge: no {', '.join(lacking)} here; `make system` installs them")
    root = Path(tempfile.mkdtemp(prefix="slurm-"))  # pytest's own folder is too long a path for a socket
    cluster = PrivateSlurm(root)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(root)


@pytest.fixture
def slurm(_cluster: PrivateSlurm, monkeypatch: pytest.MonkeyPatch) -> Iterator[PrivateSlurm]:
    """A SLURM with two idle nodes, which this process's commands talk to; a test must leave no job in main."""
    for name, value in _cluster.environment.items():
        monkeypatch.setenv(name, value)
    yield _cluster
    left = _cluster.jobs("-p", "main")
    _cluster.output("scancel", "--full", *left)
    assert not left, f"jobs left: {left}"
