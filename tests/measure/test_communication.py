"""Collectives counted on ranks that are only pretended: the operators are real, nothing is sent."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from efficient_training.measure.communication import Call, Communication, ring_share

RANKS = 4
S = 64 * 4  # bytes of 64 fp32 numbers

# Their names before torch 2.13 are deprecated since.
gather: Callable[..., Any] = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter: Callable[..., Any] = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


@pytest.fixture(autouse=True)
def ranks() -> Iterator[None]:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    yield
    dist.destroy_process_group()


def numbers(count: int = 64) -> torch.Tensor:
    return torch.ones(count)


def test_each_collective_counts_its_whole_tensor() -> None:
    with Communication() as communication:
        dist.all_reduce(numbers())
        dist.broadcast(numbers(), src=0)
        dist.reduce(numbers(), dst=0)
        gather(numbers(), numbers(16))
        dist.all_gather([numbers(16) for _ in range(RANKS)], numbers(16))
        reduce_scatter(numbers(16), numbers())
        dist.reduce_scatter(numbers(16), [numbers(16) for _ in range(RANKS)])
        dist.all_to_all_single(numbers(), numbers())
    assert [(call.collective, call.bytes) for call in communication.all] == [
        ("all-reduce", S),
        ("broadcast", S),
        ("reduce", S),
        ("all-gather", S),
        ("all-gather", S),
        ("reduce-scatter", S),
        ("reduce-scatter", S),
        ("all-to-all", S),
    ]
    assert {call.ranks for call in communication.all} == {RANKS}
    assert communication.calls["all-gather"] == 2
    assert communication.bytes["reduce-scatter"] == 2 * S


@pytest.mark.parametrize(
    ("collective", "share"),
    [("all-reduce", 1.5), ("all-gather", 0.75), ("reduce-scatter", 0.75), ("broadcast", 0.75), ("send", 1.0)],
)
def test_a_ring_sends_its_share(collective: str, share: float) -> None:
    assert ring_share(collective, RANKS) == share
    assert Call(collective, 100, RANKS, torch.float32, 100).sent == 100 * share
    assert ring_share("all-reduce", 1) == 0


def test_functional_collectives_of_dtensors_are_seen() -> None:
    mesh = init_device_mesh("cpu", (RANKS,))
    sharded = distribute_tensor(torch.ones(8, 8), mesh, [Shard(0)])
    with Communication() as communication:
        sharded.redistribute(mesh, [Replicate()])
    assert communication.calls == {"all-gather": 1}
    assert communication.bytes == {"all-gather": S}


def test_a_group_of_ranks_counts_its_own_size() -> None:
    pair = dist.new_group([0, 1])
    with Communication() as communication:
        dist.all_reduce(numbers(), group=pair)
    assert communication.all[0].ranks == 2
    assert communication.sent == S  # 2 x (2 - 1) / 2 of the tensor


def test_a_view_counts_what_is_sent_and_says_how_large_its_buffer_is() -> None:
    buffer = numbers(1000)
    with Communication() as communication:
        dist.all_reduce(buffer[:64])
    assert (communication.all[0].bytes, communication.all[0].buffer) == (S, 4000)


def test_small_calls_and_barriers_stay_out() -> None:
    with Communication(floor=100) as communication:
        dist.all_reduce(numbers(1))
        dist.all_reduce(numbers())
        dist.barrier()
    assert communication.calls == {"all-reduce": 1}
    assert len(communication.all) == 2


def test_the_collectives_of_a_backward_pass_are_seen() -> None:
    x = torch.ones(2, 8)
    model = nn.Linear(8, 8)
    fully_shard(model, mesh=init_device_mesh("cpu", (RANKS,)), reshard_after_forward=True)
    with Communication() as communication:
        model(x).sum().backward()
    assert communication.bytes == {"all-gather": 2 * 72 * 4, "reduce-scatter": 72 * 4}
    assert communication.sent == 3 * 72 * 4 * 0.75


def test_an_unknown_collective_has_no_share() -> None:
    with pytest.raises(KeyError):
        ring_share("gossip", RANKS)
