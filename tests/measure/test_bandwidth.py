import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from efficient_training.errors import UserError
from efficient_training.measure import bandwidth
from efficient_training.measure.bandwidth import BLOCK, disk_rates, link_rates


def test_a_disk_is_timed_and_nothing_is_left(tmp_path: Path) -> None:
    rates = disk_rates(tmp_path, 4 * BLOCK + 1, repeats=1)
    assert rates.size == 4 * BLOCK
    assert rates.write > 1e5
    assert rates.read > 1e5
    assert list(tmp_path.iterdir()) == []


def test_what_was_written_is_read(tmp_path: Path) -> None:
    with bandwidth._nameless(tmp_path) as (file, _), bandwidth._buffers() as buffers:
        wrote = [bytes(buffer) for buffer in buffers]
        bandwidth._transfer(file, len(buffers), buffers, os.pwritev)
        for buffer in buffers:
            buffer[:] = bytes(BLOCK)
        bandwidth._transfer(file, len(buffers), buffers, os.preadv)
        assert [bytes(buffer) for buffer in buffers] == wrote
        assert os.fstat(file).st_size == len(buffers) * BLOCK
        assert list(tmp_path.iterdir()) == []


def test_a_killed_probe_leaves_nothing(tmp_path: Path) -> None:
    code = (
        "import os, signal; from efficient_training.measure import bandwidth\n"
        "bandwidth._transfer = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        f"bandwidth.disk_rates({str(tmp_path)!r}, bandwidth.BLOCK)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    assert list(tmp_path.iterdir()) == []


def test_an_error_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(bandwidth, "_transfer", full)
    with pytest.raises(UserError, match="No space left on device; choose a folder"):
        disk_rates(tmp_path, BLOCK)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_missing_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere: No such file or directory; choose a folder"):
        disk_rates(tmp_path / "nowhere")


def test_the_probe_leaves_room(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"MiB free; a probe of .* wants 8 times its size"):
        disk_rates(tmp_path, 2**60)


def test_a_link_needs_a_gpu() -> None:
    with pytest.raises(UserError, match="needs a CUDA device, got cpu"):
        link_rates("cpu", pinned=True)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_link_has_two_directions() -> None:
    rates = link_rates("cuda", pinned=True, size=2**24)
    assert rates.both > 0.9 * min(rates.up, rates.down) > 1e8
