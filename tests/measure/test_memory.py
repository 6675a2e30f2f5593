"""The memory tracker, in cases small enough to count by hand. fp32 tensors of 8 x 16 hold 512 bytes."""

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from efficient_training.measure.memory import MemoryTracker
from efficient_training.measure.places import in_host_memory
from efficient_training.measure.saved import saved_tensors

N = 8 * 16 * 4
W = 16 * 16 * 4


class Layers(nn.Module):
    """Linear layers without bias, each followed by an exponential, which saves its output."""

    def __init__(self, count: int, *, segments: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16, bias=False) for _ in range(count))
        self.segments = segments

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = checkpoint(self.block, layer, x, use_reentrant=False) if self.segments else self.block(layer, x)
        return x

    @staticmethod
    def block(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = layer(x).exp()
        return y


def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, **options: Any) -> MemoryTracker:
    optimizer.zero_grad()
    with MemoryTracker(model, optimizer, **options) as tracker:
        with tracker.phase("forward"):
            loss = model(x).sum()
        with tracker.phase("backward"):
            loss.backward()
        with tracker.phase("optimizer step"):
            optimizer.step()
    return tracker


def test_allocations_and_frees_are_exact() -> None:
    with MemoryTracker() as tracker:
        a = torch.zeros(8, 16)
        assert tracker.live == N
        b = a + 1
        assert tracker.live == 2 * N
        del a
        assert tracker.live == N
        c = b.view(-1)[3:]
        del b
        assert tracker.live == N  # the view holds the whole storage
        c.add_(1)
        assert tracker.live == N
        del c
        assert tracker.live == 0
    assert tracker.peak.bytes == 2 * N
    assert [sample.bytes for sample in tracker.timeline][:2] == [N, 2 * N]


def test_a_timeline_read_too_early_is_not_kept() -> None:
    with MemoryTracker() as tracker:
        early = len(tracker.timeline)
        x = torch.ones(8, 16)
    assert tracker.timeline[-1].bytes == N
    assert len(tracker.timeline) > early
    del x


def test_a_temporary_inside_an_expression_is_seen() -> None:
    x = torch.zeros(8, 16)
    with MemoryTracker(components={"inputs": [x]}) as tracker, tracker.phase("forward"):
        y = (x * 2).exp()
    phase = tracker.phases["forward"]
    assert phase.peak.components == {"inputs": N, "temporaries": N, "activations": N}
    assert phase.end.components == {"inputs": N, "activations": N}
    assert phase.peak.operator == "aten::exp"
    del y


def test_tensors_from_before_are_not_counted_nor_their_views() -> None:
    x = torch.zeros(8, 16)
    with MemoryTracker() as tracker:
        y = x.view(-1)[5:]
        y.mul_(2)
        assert tracker.live == 0
        z = torch.tensor([1.0, 2.0])
        assert tracker.live == 8
    del y, z


def test_resizing_is_followed() -> None:
    with MemoryTracker() as tracker:
        a = torch.zeros(4)
        a.resize_(128)
        assert tracker.live == 512
        del a
        assert tracker.live == 0


def test_a_step_of_adamw_phase_by_phase() -> None:
    model = Layers(2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False, fused=False)
    x = torch.ones(8, 16)
    first = step(model, optimizer, x)
    assert first.phases["forward"].end.components == {"weights": 2 * W, "activations": 2 * N + 4}  # 4: the loss
    assert first.phases["backward"].end.components["gradients"] == 2 * W
    assert first.phases["optimizer step"].end.components["optimizer state"] == 4 * W + 2 * 4  # and two step counts
    second = step(model, optimizer, x)
    forward, backward, update = (second.phases[name] for name in ("forward", "backward", "optimizer step"))
    state = 4 * W + 2 * 4
    assert forward.peak.components == {
        "weights": 2 * W,
        "optimizer state": state,
        "activations": 2 * N,
        "temporaries": N,  # the last product, whose exponential has just been taken
    }
    assert backward.end.components == {"weights": 2 * W, "optimizer state": state, "gradients": 2 * W, "activations": 4}
    # The square root of v, its quotient by the bias correction, and the previous layer's, which a variable still holds.
    assert update.peak.components["temporaries"] == 3 * W
    assert second.peak == max((forward.peak, backward.peak, update.peak), key=lambda sample: sample.bytes)
    assert second.peak.phase == "optimizer step"


@pytest.mark.parametrize(("foreach", "copies"), [(True, 5), (False, 0)])
def test_the_optimizers_step_with_foreach_takes_a_copy_and_fused_none(foreach: bool, copies: int) -> None:
    model = Layers(5)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=foreach, fused=not foreach)
    step(model, optimizer, torch.ones(8, 16))
    peak = step(model, optimizer, torch.ones(8, 16)).phases["optimizer step"].peak
    assert peak.components.get("temporaries", 0) == copies * W


def test_components_sum_to_the_live_bytes_at_every_sample() -> None:
    model = Layers(3)
    totals = []
    tracker = MemoryTracker(model)
    with tracker:
        for name in ("forward", "backward"):
            with tracker.phase(name):
                if name == "forward":
                    loss = model(torch.ones(8, 16)).sum()
                else:
                    loss.backward()
                totals.append(tracker.live)
    assert totals == [tracker.phases[name].end.bytes for name in ("forward", "backward")]
    assert all(size > 0 for sample in tracker.timeline for size in sample.components.values())


def test_activations_agree_with_saved_tensors() -> None:
    model = nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 16), nn.Tanh())
    x = torch.ones(8, 16)
    with saved_tensors(exclude=[*model.parameters(), x]) as saved:
        y = model(x)
    tracker = MemoryTracker(model)
    with tracker, tracker.phase("forward"):
        y = model(x)
    assert tracker.phases["forward"].end.components["activations"] == saved.bytes
    del y


def test_checkpointing_recomputes_activations_in_backward() -> None:
    plain, segments = Layers(4), Layers(4, segments=True)
    x = torch.ones(8, 16)
    one, two = (step(model, torch.optim.SGD(model.parameters()), x) for model in (plain, segments))
    # Plain, each block's output, which is the next one's input; checkpointed, the inputs alone (the first is not
    # counted: it was there before), and in backward the output of one block at a time.
    assert one.phases["forward"].end.components["activations"] == 4 * N + 4
    assert two.phases["forward"].end.components["activations"] == 3 * N + 4
    assert max(sample.components.get("activations", 0) for sample in one.timeline) == 4 * N + 4
    assert max(sample.components.get("activations", 0) for sample in two.timeline) == 4 * N + 4


def test_a_checkpointed_run_of_layers_keeps_its_input_alone() -> None:
    model = Layers(4)
    x = torch.ones(8, 16, requires_grad=True)
    tracker = MemoryTracker(model)
    with tracker:
        with tracker.phase("forward"):
            loss = checkpoint(model, x.mul(1), use_reentrant=False).sum()
        with tracker.phase("backward"):
            loss.backward()
    assert tracker.phases["forward"].end.components == {"weights": 4 * W, "activations": N + 4}
    recomputed = max(sample.components.get("activations", 0) for sample in tracker.timeline)
    assert recomputed == N + 4 + 4 * N


@pytest.mark.parametrize("needed", [True, False])
def test_autocasts_copy_of_a_weight_is_an_activation_where_backward_needs_it(needed: bool) -> None:
    model = nn.Linear(16, 16, bias=False)
    x = torch.ones(8, 16, requires_grad=needed)
    tracker = MemoryTracker(model, components={"inputs": [x]})
    with tracker, tracker.phase("forward"), torch.autocast("cpu", torch.bfloat16):
        y = model(x)
    copies = N // 2 + N // 2  # the input's bf16 copy, and the output
    components = tracker.phases["forward"].end.components
    assert components == {"weights": W, "inputs": N, "activations": copies + (W // 2 if needed else 0)}
    # Autocast's cache holds the weight's copy until autocast ends, needed or not.
    assert tracker.phases["forward"].peak.bytes == W + N + copies + W // 2
    del y


def test_the_loss_is_told_by_the_vocabulary() -> None:
    model = nn.Linear(16, 100, bias=False)
    x, y = torch.ones(8, 16), torch.zeros(8, dtype=torch.long)
    logits = 8 * 100 * 4
    tracker = MemoryTracker(model, vocabulary=100)
    with tracker:
        with tracker.phase("forward"):
            loss = F.cross_entropy(model(x), y)
        with tracker.phase("backward"):
            loss.backward()
    assert tracker.phases["forward"].peak.components["loss"] == 2 * logits  # the logits and their log-softmax
    assert tracker.phases["forward"].end.components["loss"] == logits  # the log-softmax is saved
    assert tracker.phases["backward"].peak.components["loss"] == 3 * logits  # its gradient, and the logits'
    assert tracker.phases["backward"].end.components == {"weights": 6400, "gradients": 6400, "activations": 4}


def test_gradients_that_are_dropped_inside_a_phase_are_gradients() -> None:
    model = Layers(2)
    tracker = MemoryTracker(model)
    with tracker, tracker.phase("step"):
        model(torch.ones(8, 16)).sum().backward()
        model.zero_grad()
    assert tracker.phases["step"].end.components == {"weights": 2 * W}
    assert max(sample.components.get("gradients", 0) for sample in tracker.timeline) == 2 * W


def test_named_components_are_asked_again_at_the_end_of_a_phase() -> None:
    held: list[torch.Tensor] = []
    tracker = MemoryTracker(components={"master weights": lambda: held})
    with tracker, tracker.phase("forward"):
        held.append(torch.zeros(8, 16))
    assert tracker.phases["forward"].end.components == {"master weights": N}


def test_the_host_has_bytes_of_its_own() -> None:
    before, inside = torch.zeros(8, 16), [torch.zeros(0)]
    tracker = MemoryTracker(components={"master weights": [before]}, host=lambda: [before])
    with tracker, tracker.phase("forward"):
        made = torch.ones(8, 16)
        with in_host_memory():
            inside[0] = made.to("cpu", copy=True)
        assert tracker.live == 3 * N
        made = made + 1
    end = tracker.phases["forward"].end
    assert end.components == {"activations": N}
    assert end.host == {"master weights": N, "activations": N}
    assert (end.bytes, end.host_bytes) == (N, 2 * N)
    assert tracker.peak.bytes == 2 * N  # of the device alone: `made`, and what replaces it


def test_a_copy_of_the_transposed_head_is_no_logits() -> None:
    head, hidden = torch.zeros(50, 8), torch.zeros(3, 8)
    tracker = MemoryTracker(vocabulary=50)
    with tracker, tracker.phase("forward"):
        kept = head.t().to("cpu", copy=True), hidden @ head.t()
    assert kept[0].shape == (8, 50)
    assert tracker.phases["forward"].end.components == {"activations": 4 * 8 * 50, "loss": 4 * 3 * 50}


def test_a_phase_entered_twice_has_one_peak() -> None:
    tracker = MemoryTracker()
    with tracker:
        for size in (8, 32, 16):
            with tracker.phase("forward"):
                torch.zeros(size)
    assert list(tracker.phases) == ["forward"]
    assert tracker.phases["forward"].peak.bytes == 32 * 4
    assert tracker.phases["forward"].end.bytes == 0


def test_phases_do_not_nest() -> None:
    tracker = MemoryTracker()
    with tracker, tracker.phase("forward"):
        inner = tracker.phase("backward")
        with pytest.raises(RuntimeError, match="inside phase 'forward'"):
            inner.__enter__()


@pytest.mark.parametrize("make", [lambda: Layers(2), lambda: Layers(2, segments=True)])
def test_tracking_changes_no_result(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    model = make()
    x = torch.randn(8, 16)
    model(x).sum().backward()
    expected = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    model.zero_grad()
    step(model, torch.optim.SGD(model.parameters(), lr=0.0), x)
    assert all(torch.equal(p.grad, e) for p, e in zip(model.parameters(), expected, strict=True) if p.grad is not None)


def test_a_tracker_serves_one_block_and_lets_go_of_the_model() -> None:
    model = Layers(1)
    weight = weakref.ref(next(model.parameters()).untyped_storage())
    tracker = MemoryTracker(model)
    with tracker:
        pass
    del model
    assert weight() is None
    with pytest.raises(RuntimeError, match="make another"):
        tracker.__enter__()
