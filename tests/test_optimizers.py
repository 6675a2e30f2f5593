import copy
import gc
import sys
import warnings
from typing import Any

import bitsandbytes
import pytest
import torch
from torch import nn

from efficient_training.errors import UserError
from efficient_training.measure.memory import MemoryTracker
from efficient_training.optimizer_state import WORDS, Word, held_bytes, muon_takes, state_bytes
from efficient_training.optimizers import InBackward, Lion, Named, Together, build

bnb: Any = bitsandbytes  # its names are not exported as a type checker asks


@pytest.fixture(autouse=True)
def _eager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")


class Net(nn.Module):
    """Parameters of every kind: quantized, too small, of a size that no block divides, with three dimensions."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__()
        self.embed = nn.Embedding(70, 64)
        self.first = nn.Linear(64, 100)
        self.second = nn.Linear(100, 53)
        self.conv = nn.Conv1d(53, 32, 3)
        self.lm_head = nn.Linear(32, 70, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.second(torch.tanh(self.first(self.embed(ids))))
        result: torch.Tensor = self.lm_head(self.conv(x.transpose(1, 2)).mean(2))
        return result


def loss(net: nn.Module, seed: int = 0) -> torch.Tensor:
    ids = torch.randint(70, (4, 6), generator=torch.Generator().manual_seed(seed))
    return nn.functional.cross_entropy(net(ids).float(), ids[:, 0])


def named(net: nn.Module) -> Named:
    return dict(net.named_parameters())


def step(optimizer: Any, net: nn.Module, seed: int = 0) -> None:
    optimizer.zero_grad()
    loss(net, seed).backward()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Paged optimizers are not supported on CPU")
        optimizer.step()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("word", WORDS)
def test_state_has_the_derived_bytes_and_the_loss_falls(word: Word, dtype: torch.dtype) -> None:
    net = Net().to(dtype)
    optimizer = build(word, named(net), 1e-2)
    before = loss(net).item()
    for _ in range(3):
        step(optimizer, net)
    shapes = {name: tuple(p.shape) for name, p in net.named_parameters()}
    assert held_bytes(optimizer) == state_bytes(word, shapes, dtype.itemsize).total
    assert loss(net).item() < before


@pytest.mark.parametrize(
    ("word", "bytes_"),
    [
        ("adamw", 8 * 4096 + 4),
        ("adafactor", 4 * (64 + 64) + 4),
        ("lion", 4 * 4096),
        ("muon", 4 * 4096),
        ("bnb-adamw8bit", 2 * 4096 + 2 * 4 * 16 + 2048),
        ("bnb-lion8bit", 4096 + 4 * 16 + 1024),
        ("torchao-adamw8bit", 2 * 4096 + 2 * 4 * 16 + 2048 + 4),
        ("torchao-adamw4bit", 4096 + 2 * 4 * 32 + 128 + 4),
        ("torchao-adamwfp8", 2 * 4096 + 2 * 4 * 16 + 4),
    ],
)
def test_bytes_of_one_matrix_by_hand(word: Word, bytes_: int) -> None:
    assert state_bytes(word, {"weight": (64, 64)}).total == bytes_


def test_one_element_fewer_stays_in_full_precision() -> None:
    assert state_bytes("bnb-adamw8bit", {"weight": (4095,)}).total == 8 * 4095
    assert state_bytes("torchao-adamw8bit", {"weight": (4095,)}, 2).total == 4 * 4095 + 4


def test_named_parameters_keep_32_bits_and_the_wish_goes_with_them() -> None:
    net = Net()
    chosen = ("embed.weight",)
    optimizer = build("bnb-adamw8bit", named(net), 1e-3, full_precision=chosen)
    step(optimizer, net)
    shapes = {name: p.shape for name, p in net.named_parameters()}
    assert held_bytes(optimizer) == state_bytes("bnb-adamw8bit", shapes, full_precision=chosen).total
    assert optimizer.state[net.embed.weight]["state1"].dtype == torch.float32
    assert optimizer.state[net.first.weight]["state1"].dtype == torch.uint8
    manager = bnb.optim.GlobalOptimManager.get_instance()
    key = id(net.embed.weight)
    assert key in manager.pid2config
    del net, optimizer
    gc.collect()
    assert key not in manager.pid2config


def test_a_position_wish_of_another_model_is_not_ours() -> None:
    """What bitsandbytes' own embedding leaves behind would reach our first parameter; `build` does not use that way."""
    net, other = Net(), Net()
    step(build("bnb-adamw8bit", named(net), 1e-3, full_precision=("embed.weight",)), net)
    optimizer = build("bnb-adamw8bit", named(other), 1e-3)
    step(optimizer, other)
    assert optimizer.state[other.embed.weight]["state1"].dtype == torch.uint8


def test_lion_is_that_of_bitsandbytes() -> None:
    ours, theirs = Net(), Net()
    one = Lion(ours.parameters(), lr=1e-3, weight_decay=0.1)
    other = bnb.optim.Lion32bit(theirs.parameters(), lr=1e-3, weight_decay=0.1)
    for seed in range(5):
        step(one, ours, seed)
        step(other, theirs, seed)
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-6)


def test_muon_takes_hidden_matrices_and_saves_and_loads_both_parts() -> None:
    assert muon_takes("layers.0.weight", (4, 4))
    assert not muon_takes("layers.0.bias", (4,))
    assert not muon_takes("model.embed_tokens.weight", (4, 4))
    assert not muon_takes("lm_head.weight", (4, 4))
    net = Net()
    optimizer = build("muon", named(net), 1e-2)
    assert isinstance(optimizer, Together)
    step(optimizer, net)
    assert "momentum_buffer" in optimizer.state[net.first.weight]
    assert "exp_avg" in optimizer.state[net.embed.weight]
    again = copy.deepcopy(net)
    other = build("muon", named(again), 1e-2)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    step(optimizer, net, 1)
    step(other, again, 1)
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), again.parameters(), strict=True))


@pytest.mark.parametrize("word", ["adamw", "bnb-adamw8bit"])
def test_in_backward_is_the_same_step_and_leaves_no_gradient(word: Word) -> None:
    whole, apart = Net(), Net()
    tied, tied_apart = whole.lm_head, apart.lm_head
    whole.embed.weight, apart.embed.weight = (nn.Parameter(torch.ones(70, 64)) for _ in range(2))
    optimizer = build(word, named(whole), 1e-2)
    in_backward = InBackward(word, named(apart), 1e-2)
    for seed in range(3):
        step(optimizer, whole, seed)
        loss(apart, seed).backward()
        assert all(p.grad is None for p in apart.parameters())
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), apart.parameters(), strict=True))
    assert torch.equal(tied.weight, tied_apart.weight)
    in_backward.remove()
    loss(apart).backward()
    assert all(p.grad is not None for p in apart.parameters())


def test_in_backward_steps_a_weight_that_is_used_twice_once() -> None:
    shared = nn.Linear(8, 8, bias=False)
    in_backward = InBackward("adamw", named(shared), 1e-2)
    shared(shared(torch.ones(2, 8))).sum().backward()
    assert int(in_backward.state[shared.weight]["step"]) == 1


def test_only_stochastic_rounding_moves_bf16_weights_by_less_than_half_their_spacing() -> None:
    def moved(**options: Any) -> float:
        torch.manual_seed(0)
        p = nn.Parameter(torch.ones(64, 64, dtype=torch.bfloat16))
        optimizer = build("torchao-adamw8bit", {"weight": p}, 1e-4, **options)
        p.grad = torch.ones_like(p)
        optimizer.step()
        return (p != 1).double().mean().item()

    assert moved() == 0
    # A step of 1e-4 downward from 1, where the spacing below is 2**-8, goes down with a probability of 0.0256.
    assert moved(stochastic_rounding=True) == pytest.approx(1e-4 * 2**8, abs=0.01)


@pytest.mark.parametrize("word", ["bnb-adamw8bit", "torchao-adamw8bit", "torchao-adamw4bit"])
def test_the_memory_tracker_counts_codes_and_not_what_they_stand_for(word: Word) -> None:
    net = Net()
    optimizer = build(word, named(net), 1e-3)
    step(optimizer, net)
    with MemoryTracker(net, optimizer) as tracker, tracker.phase("optimizer step"):
        optimizer.step()
    assert tracker.phases["optimizer step"].end.components["optimizer state"] == held_bytes(optimizer)


def test_frozen_parameters_are_left_out() -> None:
    net = Net()
    net.embed.requires_grad_(False)
    optimizer = build("adamw", named(net), 1e-3)
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(list(net.parameters())) - 1


@pytest.mark.parametrize(
    ("word", "options", "message"),
    [
        ("adam8", {}, "unknown optimizer 'adam8'"),
        ("adamw", {"full_precision": ["embed.weight"]}, "only bitsandbytes"),
        ("bnb-adamw8bit", {"full_precision": ["nothing"]}, "'nothing', which is no parameter"),
        ("bnb-adamw8bit", {"stochastic_rounding": True}, "one of torchao's optimizers"),
    ],
)
def test_user_errors(word: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        build(word, named(Net()), 1e-3, **options)


def test_nothing_to_train_is_an_error() -> None:
    with pytest.raises(UserError, match="no parameter is trained"):
        build("adamw", named(Net().requires_grad_(False)), 1e-3)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(UserError, match="needs bitsandbytes, which is not installed"):
        build("bnb-adamw8bit", named(Net()), 1e-3)
