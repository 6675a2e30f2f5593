"""Strategies on two real ranks, all in one launch."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from efficient_training.launch import Launched, launch
from efficient_training.sharding.theory import FP32, StateDtypes, state_bytes
from efficient_training.sharding.words import STRATEGIES

INNER = [(3, 7), (3,)]
OUTER = [(7, 5), (7,), (1, 3), (1,)]
IN_ORDER = [(7, 5), (7,), (3, 7), (3,), (1, 3), (1,)]
SHARDED = [name for name in STRATEGIES if name != "hsdp"]


@pytest.fixture(scope="module")
def launched() -> Launched:
    script = Path(__file__).parent / "scripts" / "strategies.py"
    return launch(script, ranks=2, backend="gloo", timeout_s=200, progress=False)


def reports(launched: Launched, of: str) -> list[list[dict[str, Any]]]:
    return [[report for report in launched.reports[rank] if report["of"] == of] for rank in (0, 1)]


@pytest.mark.parametrize("strategy", SHARDED)
def test_each_rank_holds_what_theory_says(launched: Launched, strategy: str) -> None:
    deepspeed = strategy.startswith("deepspeed")
    dtypes = StateDtypes(master=4) if deepspeed else FP32
    units = [OUTER, INNER] if strategy.startswith("fsdp") else [IN_ORDER]
    for rank, found in enumerate(reports(launched, "states")):
        (report,) = [one for one in found if one["strategy"] == strategy]
        assert report["held"] == state_bytes(strategy, units, 2, rank, dtypes)


@pytest.mark.parametrize("rank", [0, 1])
def test_all_strategies_train_alike(launched: Launched, rank: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3), nn.Tanh(), nn.Linear(3, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    parts = [torch.randn(4, 5, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1)]
    for _ in range(2):
        model(torch.cat(parts)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    expected = model(parts[rank]).square().mean().item()
    losses = {report["strategy"]: report["loss"] for report in reports(launched, "states")[rank]}
    assert losses == {strategy: pytest.approx(expected, rel=1e-5) for strategy in SHARDED}


def test_what_cannot_be_is_refused_in_one_line(launched: Launched) -> None:
    (said,) = reports(launched, "refused")[0]
    assert "makes its own engine" in said["engine"]
    assert "is no DeepSpeed stage" in said["no_engine"]
    assert "takes neither a policy nor a mesh" in said["policy"]
    assert "functools.partial" in said["partial"]
    assert "unknown strategy 'zero3'" in said["unknown"]
    assert "synchronizes no gradients" in said["plain"]
    assert "synchronizes no gradients" in said["plain_context"]


def test_no_sync_sends_once_and_warns_only_where_it_is_not_the_backends_own(launched: Launched) -> None:
    for found in reports(launched, "no_sync"):
        assert [report["strategy"] for report in found] == ["ddp", "fsdp", "fsdp1-full"]
        assert all(report["both"] == 2 * report["last"] > 0 for report in found)
        assert [report["warned"] for report in found] == [False, True, False]


def test_the_switch_of_fsdp2_works_on_ddp_too(launched: Launched) -> None:
    one, other = reports(launched, "switch")
    for report in (*one, *other):
        assert report["off"] == 0 < report["on"]
        assert report["warned"] == (report["strategy"] == "ddp")
    # Both micro-batches' gradients are in what was reduced: the same under both backends.
    assert one[0]["norms"] == pytest.approx(one[1]["norms"] + other[1]["norms"], rel=1e-6)


def test_gathered_weights_are_seen(launched: Launched) -> None:
    (report,) = reports(launched, "gathered")[0]
    padded = sum((shape[0] + shape[0] % 2) * (shape[1] if len(shape) > 1 else 1) for shape in IN_ORDER)
    assert (report["before"], report["after_forward"]) == (0, 4 * padded)
