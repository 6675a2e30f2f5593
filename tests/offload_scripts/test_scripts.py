"""The chapter's worker scripts as they are launched, on other sizes and on a disk that is really too small."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from efficient_training import native
from efficient_training.launch import LaunchError, launch
from efficient_training.offload.theory import expected

SCRIPTS = Path(__file__).parents[2] / "notebooks" / "07-offload"
SHAPE = ["--width", "768", "--layers", "3", "--sub-group", "600000", "--rows", "8"]
WIDTHS = [64, 768, 768, 768, 768, 64]
SIZES = [size for a, b in pairwise(WIDTHS) for size in (a * b, b)]

pytestmark = [
    pytest.mark.skipif(lack is not None, reason=f"needs {lack}")
    for lack in map(native.missing, ("deepspeed_shm_comm", "cpu_adam", "async_io"))
]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 16 MiB in memory, where this process may mount one."""
    place = tmp_path / "small"
    place.mkdir()
    mounted = os.getuid() == 0 and shutil.which("mount") is not None
    mounted = (
        mounted
        and subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(place)], capture_output=True, check=False
        ).returncode
        == 0
    )
    if not mounted:
        pytest.skip("cannot mount a tmpfs here")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=False)


def test_other_sizes_are_where_the_formulas_say(tmp_path: Path) -> None:
    ways = ["none", "optimizer", "parameters", "optimizer-nvme", "parameters-nvme"]
    made = launch(SCRIPTS / "places.py", *ways, "--folder", str(tmp_path), *SHAPE, backend="gloo", progress=False)
    runs = {run["offload"]: run for run in made.reports[0]}
    for way in ways:
        assert runs[way]["held"] == expected(way, SIZES, 600_000), way  # type: ignore[arg-type]
    assert len({tuple(runs[way]["losses"]) for way in ways[1:]}) == 1
    on_disk = sum(runs["parameters-nvme"]["held"]["disk"].values())
    assert runs["parameters-nvme"]["written"] == on_disk
    assert runs["parameters-nvme"]["read"] == on_disk + runs["parameters-nvme"]["held"]["disk"]["weights"]


def test_a_disk_that_is_too_small_is_told_before_anything_starts(small_disk: Path, tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=r"MiB free and needs .* MiB; make room, or choose another folder") as told:
        launch(
            SCRIPTS / "places.py", "optimizer-nvme", "--folder", str(small_disk), *SHAPE, backend="gloo", progress=False
        )
    assert str(told.value).splitlines()[0].count("offload to disk:") == 1
    assert list(small_disk.rglob("*.swp")) == []


def test_a_disk_that_fills_up_ends_training_with_one_message(small_disk: Path, tmp_path: Path) -> None:
    """Room at the start, taken by something else before the state is written; the earlier checkpoint stays whole."""
    script = tmp_path / "filling.py"
    script.write_text(
        f"""
import sys
sys.path.insert(0, {str(SCRIPTS)!r})
from pathlib import Path
from places import arguments, native, start, train, worker
from efficient_training.offload import swap
import places, torch

given = arguments()
native.load()
with worker() as this, swap.watch():
    places.prepare_folder = lambda folder, needed: folder.mkdir(parents=True)  # it would refuse
    torch.save({{"step": 3}}, {str(tmp_path / "saved.pt")!r})
    engine = start("optimizer-nvme", given.folder / "swap", given)
    train(engine, given.rows, 2)
"""
    )
    with pytest.raises(
        LaunchError, match="the disk is full, or a limit on file sizes was reached; make room, and go on"
    ):
        launch(script, "--folder", str(small_disk), *SHAPE, backend="gloo", progress=False)
    assert torch.load(tmp_path / "saved.pt") == {"step": 3}
    running = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert str(script) not in running
