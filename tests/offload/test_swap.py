from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from efficient_training import native
from efficient_training.errors import UserError
from efficient_training.offload import swap
from efficient_training.offload.swap import largest_parameter, prepare_folder, sub_groups, swap_plan, watch
from efficient_training.offload.theory import expected

sizes = st.lists(st.integers(1, 2**21), min_size=1, max_size=12)


@given(sizes, st.integers(1, 2**22))
def test_sub_groups_keep_order_and_have_their_size(tensors: list[int], size: int) -> None:
    groups = sub_groups(tensors, size)
    assert [tensor for group in groups for tensor in group] == tensors
    assert all(sum(group) >= size and sum(group[:-1]) < size for group in groups[:-1])


@given(sizes, st.integers(1, 2**22), st.booleans())
def test_what_is_not_on_disk_stays(tensors: list[int], size: int, parameters: bool) -> None:
    plan = swap_plan(tensors, size, parameters=parameters)
    whole = {"weights": 2, "gradients": 4, "optimizer state": 8, "master weights": 4}
    for component, each in whole.items():
        padded = plan.disk[component] + plan.stays[component]
        assert 0 <= padded - each * sum(tensors) < 1024 * 3 * len(tensors)
    assert plan.disk["gradients"] % 1024 == plan.disk["optimizer state"] % 1024 == 0
    if not parameters:
        assert plan.disk["weights"] == 0


def test_the_smallest_sub_group_that_is_swapped() -> None:
    assert swap_plan([2**18], 1).disk_bytes == 16 * 2**18
    assert swap_plan([2**18 - 1], 1).disk_bytes == 0
    assert swap_plan([2**18], 1, block=2**21).disk_bytes == 0


@given(sizes, st.integers(1, 2**22))
def test_every_way_keeps_all_states(tensors: list[int], size: int) -> None:
    parameters = sum(tensors)
    for way, least in {
        "none": 16,
        "optimizer": 20,
        "parameters": 20,
        "optimizer-nvme": 20,
        "parameters-nvme": 20,
    }.items():
        places = expected(way, tensors, size)  # type: ignore[arg-type]
        kept = [n for parts in places.values() for name, n in parts.items() if name != "temporaries"]
        assert least * parameters <= sum(kept) <= least * parameters + 1024 * 6 * len(tensors) + 4 * len(tensors)


def test_the_largest_parameter() -> None:
    assert largest_parameter(nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 7))) == 35


def test_a_folder_is_made_and_checked(tmp_path: Path) -> None:
    assert prepare_folder(tmp_path / "a" / "b", 1) == tmp_path / "a" / "b"
    assert list((tmp_path / "a" / "b").iterdir()) == []
    with pytest.raises(UserError, match="MiB free and needs 1,099,511,627,776 MiB; make room"):
        prepare_folder(tmp_path, 2**60)
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="not a directory; choose a folder that can be written"):
        prepare_folder(tmp_path / "file" / "x", 1)


class FakeDisk:
    """A handle that writes all but what a full disk would not take."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.pending: list[Any] = []

    def async_pwrite(self, buffer: torch.Tensor, path: str, offset: int) -> int:
        self.pending.append((buffer, path, offset))
        return 0

    def wait(self) -> int:
        for buffer, path, offset in self.pending:
            data = bytes(buffer.view(torch.uint8).tolist())[: self.room]
            with Path(path).open("r+b" if Path(path).exists() else "w+b") as file:
                file.seek(offset)
                file.write(data)
        done, self.pending = len(self.pending), []
        return done


@pytest.mark.parametrize("there", [False, True])
def test_a_write_that_was_cut_is_found(tmp_path: Path, there: bool) -> None:
    path = tmp_path / "x.swp"
    if there:  # a file of the step before, of the full size
        path.write_bytes(bytes(4096))
    counts = swap.Swapped()
    handle = swap._Watched(FakeDisk(3000), counts)
    handle.async_pwrite(torch.ones(1024), str(path), 0)
    with pytest.raises(UserError, match=r"x\.swp did not take all of 0\.0 MiB: the disk is full"):
        handle.wait()
    assert counts.written == 4096


def test_a_whole_write_is_counted(tmp_path: Path) -> None:
    counts = swap.Swapped()
    handle = swap._Watched(FakeDisk(2**20), counts)
    for _ in range(2):
        handle.async_pwrite(torch.ones(1024), str(tmp_path / "x.swp"), 0)
        assert handle.wait() == 1
    assert (counts.written, counts.read) == (8192, 0)
    counts.reset()
    assert counts.written == 0


@pytest.fixture
def asynchronous_io() -> Iterator[Any]:
    if lack := native.missing("async_io"):
        pytest.skip(f"needs {lack}")
    native.use()
    with watch() as counts:
        from deepspeed.ops.op_builder import AsyncIOBuilder

        yield AsyncIOBuilder().load(verbose=False).aio_handle(2**20, 8, False, True, 1), counts


def test_deepspeeds_own_handle_is_watched(asynchronous_io: Any, tmp_path: Path) -> None:
    import resource

    handle, counts = asynchronous_io
    buffer = handle.new_cpu_locked_tensor(2**20, torch.zeros(1)).fill_(1)
    path = str(tmp_path / "x.swp")
    handle.async_pwrite(buffer, path, 0)
    assert handle.wait() == 1
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, hard))
    try:
        handle.async_pwrite(buffer.fill_(2), path, 0)
        with pytest.raises(UserError, match="the disk is full"):
            handle.wait()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    handle.async_pread(buffer, path, 0)
    handle.wait()
    assert (counts.read, counts.written) == (2**22, 2**23)
    assert buffer.unique().tolist() == [1, 2]  # what the cut write left
