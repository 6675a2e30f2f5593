"""A trace costs neither the memory of the model nor the time of its depth: measured in a process of its own."""

import sys
from pathlib import Path
from typing import Any

import pytest

from efficient_training.measure.isolated import run_isolated

GIB = 2**30
SHALLOW, DEEP = 8, 160
HERE = {"PYTHONPATH": str(Path(__file__).parent)}
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads VmHWM")


def _peak_rss() -> int:
    """Bytes; of this program alone, where `ru_maxrss` would have that of the process from which it was started."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def cost(layers: list[int], recipe: dict[str, Any]) -> list[dict[str, float]]:
    """CPU seconds, and peak RSS beyond the imports in bytes, of tracing Qwen2.5-72B with so many layers, in order."""
    import time
    from dataclasses import replace

    import transformers.models.qwen2.modeling_qwen2  # noqa: F401

    from efficient_training.models import load_shape
    from efficient_training.recipe import Recipe
    from efficient_training.trace import trace
    from efficient_training.workload import Workload

    shape, how = load_shape("qwen2.5-72b"), Recipe(**recipe)
    small = replace(shape, hidden=64, heads=4, kv_heads=2, head_dim=16, ffn=176, vocab=300, layers=2)
    before = _peak_rss()
    trace(Workload(small, 64, 64), Recipe(1))  # what a first trace loads
    found = []
    for count in layers:
        start = time.process_time()
        trace(Workload(replace(shape, layers=count), 4096, 4096 * how.micro_batch), how)
        found.append({"seconds": time.process_time() - start, "bytes": _peak_rss() - before})
    return found


@linux
@pytest.mark.parametrize(
    "recipe",
    [
        {"micro_batch": 8},
        {"micro_batch": 8, "precision": "bf16-autocast", "checkpointing": "full"},
        {"micro_batch": 1, "checkpointing": "selective", "optimizer": "loop", "loss": "chunked"},
    ],
    ids=["fp32", "autocast-full", "selective-loop-chunked"],
)
def test_a_trace_takes_half_a_gib_and_no_longer_for_a_deep_model(recipe: dict[str, Any]) -> None:
    """At 72B and beyond, the weights alone of which would be hundreds of GiB."""
    shallow, deep = run_isolated(
        "test_trace_cost:cost", {"layers": [SHALLOW, DEEP], "recipe": recipe}, environment=HERE
    )
    assert deep["bytes"] < GIB / 2
    assert deep["bytes"] < shallow["bytes"] + GIB / 16  # the same two shallow models, not one of 160 layers
    assert deep["seconds"] < 2 * shallow["seconds"] + 1
