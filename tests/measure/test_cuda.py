"""What can be asked about a device's memory, and what is said where it cannot."""

import inspect
import sys

import pytest
import torch
import torch.cuda._memory_viz

from efficient_training.errors import UserError
from efficient_training.measure.cuda import process_memory
from efficient_training.measure.snapshot import ENTRIES, NO_FRAME, failure_in, recorded

CUDA = torch.device("cuda")
no_cuda = pytest.mark.skipif(torch.cuda.is_available(), reason="is about a machine without CUDA")


def test_without_its_package_the_driver_is_not_asked_and_a_note_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)  # as an import finds a package that is not there
    made = process_memory(CUDA)
    assert (made.bytes, made.context) == (None, None)
    assert made.reason == "not measured: needs the package nvidia-ml-py, which asks the driver"


@no_cuda
def test_without_a_driver_the_note_has_its_error() -> None:
    pytest.importorskip("pynvml")
    made = process_memory(CUDA)
    assert (made.bytes, made.context) == (None, None)
    assert made.reason is not None
    assert made.reason.startswith("not measured: the driver cannot be asked (NVML Shared Library Not Found")


@no_cuda
def test_a_history_without_cuda_is_refused_in_one_line(tmp_path: object) -> None:
    with pytest.raises(UserError, match="history needs a CUDA device"), recorded(tmp_path / "s.pickle"):  # type: ignore[operator]
        pytest.fail("nothing can be recorded here")


def test_torch_takes_what_the_recorder_gives() -> None:
    """On a machine with no CUDA this is all that can be checked of the calls: names and parameters."""
    memory = torch.cuda.memory
    recording = inspect.signature(memory._record_memory_history_impl)
    recording.bind("all", max_entries=ENTRIES, stacks="python")
    recording.bind(enabled=None)
    inspect.signature(memory._dump_snapshot).bind("snapshot.pickle")
    inspect.signature(torch.cuda.set_per_process_memory_fraction).bind(0.5, CUDA)


def _event(action: str, size: int, address: int = 0, *frames: tuple[str, int, str]) -> dict[str, object]:
    stack = [{"filename": name, "line": line, "name": function} for name, line, function in frames]
    return {"action": action, "size": size, "addr": address, "stream": 0, "frames": stack}


INSIDE, MINE = ("/lib/torch/nn/functional.py", 7, "linear"), ("/home/me/model.py", 12, "forward")
EVENTS = [
    _event("segment_alloc", 2**21, 0),
    _event("alloc", 1000, 1, INSIDE, MINE),
    _event("alloc", 500, 2, INSIDE, MINE),
    _event("alloc", 3000, 3),
    _event("alloc", 250, 4, INSIDE),
    _event("alloc", 9999, 5, MINE),
    _event("free_requested", 9999, 5),
    _event("free_completed", 9999, 5),
    _event("free_requested", 250, 4),
    _event("oom", 4096, 0, MINE) | {"device_free": 512},
    _event("free_requested", 1000, 1),
    _event("free_completed", 1000, 1),
]


def test_the_events_have_the_layout_that_torch_reads() -> None:
    """No recording can be made here, so torch's own reader has to accept the one that these tests use."""
    text = torch.cuda._memory_viz.trace({"segments": [], "device_traces": [[], EVENTS]})
    assert "raise OutOfMemoryError # 4.0KiB requested, 512.0B free in CUDA" in text


def test_the_holders_are_those_at_the_instant_of_the_failure() -> None:
    """What is freed while the error travels still counts; what was asked to be freed counts until it is."""
    made = failure_in({"segments": [], "device_traces": [[], EVENTS]})
    assert made is not None
    assert (made.requested, made.allocated) == (4096, 1000 + 500 + 3000 + 250)
    found = [(holder.place, holder.bytes, holder.blocks) for holder in made.holders]
    assert found == [(NO_FRAME, 3000, 1), ("model.py:12 forward", 1500, 2), ("functional.py:7 linear", 250, 1)]
    assert failure_in({"device_traces": [EVENTS]}, largest=1).holders == made.holders[:1]  # type: ignore[union-attr]


def test_a_recording_without_a_failure_has_none() -> None:
    assert failure_in({"device_traces": [EVENTS[:9]]}) is None
