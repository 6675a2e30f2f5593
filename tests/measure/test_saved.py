"""Saved-tensor counts, in cases small enough to count by hand. fp32 tensors of 8 x 16 hold 512 bytes."""

import gc
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.checkpoint import checkpoint

from efficient_training.measure.saved import SavedTensor, saved_tensors

N = 8 * 16 * 4


def leaf() -> torch.Tensor:
    return torch.ones(8, 16, requires_grad=True)


def test_a_saved_output_counts_once_with_its_shape_and_dtype() -> None:
    with saved_tensors() as saved:
        y = leaf().exp()
    assert saved.bytes == N
    assert saved.tensors == (SavedTensor((8, 16), torch.float32, N),)
    del y


def test_operators_that_need_nothing_save_nothing() -> None:
    with saved_tensors() as saved:
        y = (leaf() + 1).sum()
    assert (saved.bytes, saved.tensors) == (0, ())
    del y


def test_one_storage_saved_many_times_counts_once_and_a_view_counts_whole() -> None:
    x = leaf()
    with saved_tensors() as saved:
        y = (x * x, x[:2] * x[:2], x.view(-1) * 2, x.t() * x.t())
    assert saved.bytes == N
    del y


def test_parameters_are_left_out_where_asked() -> None:
    layer = nn.Linear(16, 16)
    x = torch.ones(8, 16)
    with saved_tensors() as everything:
        y = layer(layer(x))
    with saved_tensors(exclude=layer.parameters()) as saved:
        z = layer(layer(x))
    assert everything.bytes == 2 * N + 16 * 16 * 4  # x, the first output, the weight
    assert saved.bytes == 2 * N
    with saved_tensors(exclude=[*layer.parameters(), x]) as saved:
        w = layer(layer(x))
    assert saved.bytes == N
    del y, z, w


def test_autocast_saves_low_precision_inputs_and_a_cast_copy_of_the_weight() -> None:
    layer = nn.Linear(16, 16)
    with saved_tensors(exclude=layer.parameters()) as saved, torch.autocast("cpu", torch.bfloat16):
        y = layer(leaf())
    # The input's bf16 copy for the weight's gradient, the weight's bf16 copy for the input's.
    assert saved.bytes == N // 2 + 16 * 16 * 2
    assert {tensor.dtype for tensor in saved.tensors} == {torch.bfloat16}
    del y


def test_checkpointing_counts_the_inputs_that_survive_until_backward() -> None:
    def block(x: torch.Tensor) -> torch.Tensor:
        return x.exp().sin().exp()

    with saved_tensors() as plain:
        y = block(leaf() * 1)
    assert plain.bytes == 2 * N  # the first exp's output, which is also sin's input, and the second's
    with saved_tensors() as saved:
        z = checkpoint(block, leaf() * 1, use_reentrant=False)
    assert saved.bytes == N  # the block's input
    del y, z


def test_gradients_are_the_same_as_without_it() -> None:
    def gradient(run: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        x = torch.linspace(0, 1, 16, requires_grad=True)
        run(x).sum().backward()
        assert x.grad is not None
        return x.grad

    def block(x: torch.Tensor) -> torch.Tensor:
        return x.exp().sigmoid().sin() * x

    def watched(x: torch.Tensor) -> torch.Tensor:
        with saved_tensors() as saved:
            y: torch.Tensor = checkpoint(block, x.tanh(), use_reentrant=False) * block(x)
        assert saved.bytes > 0
        return y

    expected = gradient(lambda x: block(x.tanh()) * block(x))
    assert torch.equal(gradient(watched), expected)


def test_in_place_operators_count_the_storage_once() -> None:
    x = leaf()
    with saved_tensors() as saved:
        y = (x * 1).relu_().mul_(2)  # relu_ saves its output, which is the product's storage
    assert saved.bytes == N
    del y


def test_backward_in_the_block_leaves_the_peak() -> None:
    x = leaf()
    with saved_tensors() as saved:
        for _ in range(3):
            x.exp().sum().backward()
    assert saved.bytes == N
    with saved_tensors() as saved:
        losses = [x.exp().sum() for _ in range(3)]
        torch.stack(losses).sum().backward()
    assert saved.bytes == 3 * N
    assert len(saved.tensors) == 3


def test_readable_inside_the_block_and_unchanged_after_backward() -> None:
    with saved_tensors() as saved:
        y = leaf().exp()
        assert saved.bytes == N
        y = y.sin().exp()
        assert saved.bytes == 2 * N  # exp's output serves sin as well
        assert len(saved.tensors) == 2
    y.sum().backward()
    assert saved.bytes == 2 * N


def test_a_graph_that_is_dropped_counts_only_while_it_lives() -> None:
    with saved_tensors() as saved:
        kept = []
        for _ in range(50):
            leaf().exp()  # dropped at once: its memory, and its address, serve the next
            kept.append(leaf().exp())
        assert saved.bytes == 50 * N
    assert len(saved.tensors) == 50


def test_nothing_is_kept_alive() -> None:
    import weakref

    with saved_tensors() as saved:
        y = leaf().exp()
    gone = weakref.ref(y.untyped_storage())
    gc.disable()  # a reference cycle would keep it until a collection
    try:
        del y
        assert gone() is None
    finally:
        gc.enable()
    assert saved.bytes == N


@pytest.mark.parametrize("blocks", [2, 3])
def test_a_stack_of_tanh_layers_saves_one_tensor_each(blocks: int) -> None:
    model = nn.Sequential(*[nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(blocks)])
    with saved_tensors(exclude=model.parameters()) as saved:
        y = model(torch.ones(8, 16))
    assert saved.bytes == (blocks + 1) * N
    del y


def test_of_a_dtensor_this_processes_part_counts() -> None:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        mesh = init_device_mesh("cpu", (2,))
        weight = distribute_tensor(torch.ones(8, 4), mesh, [Shard(0)]).requires_grad_()
        with saved_tensors() as saved:
            y = weight.exp()
        assert saved.bytes == 4 * 4 * 4
        with saved_tensors(exclude=[weight]) as saved:
            z = weight * weight
        assert saved.bytes == 0
        del y, z
    finally:
        dist.destroy_process_group()
