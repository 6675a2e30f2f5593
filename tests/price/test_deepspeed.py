"""The price of DeepSpeed's stages against DeepSpeed itself, on two processes with small buckets."""

import json
from collections.abc import Iterator
from dataclasses import astuple
from pathlib import Path

import pytest

from efficient_training.fields import to_mapping
from efficient_training.launch import launch
from efficient_training.ledger import PHASES, Ledger
from efficient_training.models import ModelShape, load_shape
from efficient_training.price import deepspeed, price
from efficient_training.price.candidates import candidates
from efficient_training.recipe import DEEPSPEED, PRECISIONS, Recipe
from efficient_training.workload import Workload

LLAMA = ModelShape("ll", "llama", 64, 5, 4, 2, 16, 176, 301, 512, False)
BUCKET, SEQUENCE = 40_000, 16
RECIPES = [
    Recipe(2, precision, optimizer="fused", attention="math", sharding=stage, ranks=2)
    for stage in DEEPSPEED
    for precision in PRECISIONS[stage]
]


@pytest.fixture
def small_bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    candidates.cache_clear()
    monkeypatch.setattr(deepspeed, "REDUCE_BUCKET", BUCKET)
    yield
    candidates.cache_clear()


@pytest.mark.usefixtures("small_bucket")
def test_what_is_kept_is_exact_and_backward_is_bounded() -> None:
    pytest.importorskip("deepspeed")
    cases = [(astuple(LLAMA), to_mapping(recipe), SEQUENCE, BUCKET) for recipe in RECIPES]
    worker = Path(__file__).with_name("deepspeed_worker.py")
    found = launch(worker, json.dumps(cases), ranks=2, timeout_s=600, progress=False).reports[0]
    for recipe, measured in zip(RECIPES, found, strict=True):
        ledger = price(Workload(LLAMA, SEQUENCE, SEQUENCE * 4), recipe)
        for phase in ("forward", "optimizer step"):
            # A few scalars, and stage 3 in fp32 holds 5 KiB more.
            assert ledger.phase_peak(phase) == pytest.approx(measured[phase], rel=2e-3), (recipe, phase)
        assert measured["backward"] <= ledger.phase_peak("backward") <= 1.25 * measured["backward"], recipe


def _priced(**fields: object) -> Ledger:
    recipe = Recipe(1, "bf16-mixed", "full", optimizer="fused", ranks=8, **fields)  # type: ignore[arg-type]
    return price(Workload(load_shape("llama-3.1-8b"), 2048, 2048 * 8), recipe)


@pytest.mark.parametrize(
    ("sharding", "offload", "host", "disk"),
    [
        # bytes a parameter: master weights 4, moments 8, gradients 2 + 4, weights 2
        ("deepspeed-2", "optimizer", 18, 0),
        ("deepspeed-3", "parameters", 20, 0),
        ("deepspeed-3", "optimizer-nvme", 2 + 16, 16),
        ("deepspeed-3", "parameters-nvme", None, 18),
        ("fsdp", "parameters", 16, 0),
    ],
)
def test_offload_puts_states_elsewhere(sharding: str, offload: str, host: float | None, disk: float) -> None:
    part = 8030261248 / 8
    made = _priced(sharding=sharding, offload=offload)
    stays = _priced(sharding=sharding)
    assert bool(made.notes) == sharding.startswith("deepspeed")
    assert made.peak("disk") == pytest.approx(disk * part, rel=1e-3)
    if host is not None:
        # Swap buffers of the largest sub-group, four times in fp32, are in the second of 2 + 16.
        assert made.peak("host") == pytest.approx(host * part, rel=5e-3)
    assert made.peak() < stays.peak()
    assert not made.entries["device"]["forward"].get("optimizer state")


def test_offloaded_activations_leave_the_device() -> None:
    workload = Workload(load_shape("qwen2.5-0.5b"), 1024, 4096)
    there, away = (price(workload, Recipe(4, "bf16", offload_activations=one)) for one in (False, True))
    saved = there.entries["device"]["backward"]["activations"]
    assert away.entries["device"]["backward"].get("activations", 0) < 0.01 * saved
    # Tensors that several operators save are copied for each of them.
    saved += 4 * 4096 * workload.model.vocab  # log_softmax, which counts as loss
    assert saved < away.peak("host") < 2 * saved
    assert set(PHASES) == set(away.entries["host"])
