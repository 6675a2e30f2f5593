import pytest
import torch
from bitsandbytes import functional as bnb_functional
from torchao.optim import quant_utils

from efficient_training.blockwise import (
    CPU_TABLE_CELLS,
    dequantize,
    dynamic_map,
    linear_map,
    quantize,
    quantize_through_table,
)
from efficient_training.errors import UserError

BOTH = pytest.mark.parametrize("signed", [True, False])


def spread(n: int, signed: bool, seed: int = 0) -> torch.Tensor:
    """Numbers over many powers of ten, as moments are."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, generator=generator) * torch.exp(3 * torch.randn(n, generator=generator))
    return x if signed else x.square()


@BOTH
def test_the_8_bit_map_is_that_of_bitsandbytes_and_torchao(signed: bool) -> None:
    values = dynamic_map(signed)
    assert torch.equal(values, bnb_functional.create_dynamic_map(signed))
    assert torch.equal(values, torch.tensor(quant_utils.create_dynamic_map(signed)))


def test_the_4_bit_map_is_torchaos() -> None:
    assert torch.equal(dynamic_map(True, 4), torch.tensor(quant_utils.create_dynamic_map(True, 3, 4)))


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@BOTH
def test_maps_are_sorted_and_hold_zero_and_one(bits: int, signed: bool) -> None:
    values = dynamic_map(signed, bits)
    assert len(values) == 2**bits
    assert (values.diff() > 0).all()
    assert values[-1] == 1
    assert (values == 0).any()
    assert (values < 0).any() == signed


@pytest.mark.parametrize("block_size", [1, 7, 256])
@pytest.mark.parametrize("shape", [(1,), (255,), (256,), (257,), (3, 100)])
@BOTH
def test_every_code_is_the_nearest_value(block_size: int, shape: tuple[int, ...], signed: bool) -> None:
    x = spread(torch.Size(shape).numel(), signed).view(shape)
    values = dynamic_map(signed)
    blocks = quantize(x, values, block_size)
    assert blocks.codes.shape == x.shape
    largest = blocks.absmax.repeat_interleave(blocks.block_size)[: x.numel()].view(shape)
    scaled = (x / largest).double()
    best = (scaled[..., None] - values.double()).abs().amin(-1)
    assert torch.allclose((scaled - values.double()[blocks.codes.long()]).abs(), best, rtol=0, atol=1e-7)
    assert torch.equal(dequantize(blocks, values), values[blocks.codes.long()] * largest)


@BOTH
def test_codes_are_torchaos(signed: bool) -> None:
    x, values = spread(256 * 500, signed), dynamic_map(signed)
    scaled, scale = quant_utils.scale_tensor(x, 256)
    blocks = quantize(x, values)
    assert torch.equal(blocks.codes, quant_utils.quantize_8bit_with_qmap(scaled, values))
    assert torch.equal(blocks.absmax, scale)
    assert torch.equal(dequantize(blocks, values), quant_utils.dequant_with_qmap(blocks.codes, values, scale))


@pytest.mark.parametrize("n", [100, 256 * 200 + 77])
@BOTH
def test_through_the_table_codes_are_those_of_bitsandbytes_on_a_cpu(n: int, signed: bool) -> None:
    x, values = spread(n, signed), dynamic_map(signed)
    x[:50] = 0
    theirs, state = bnb_functional.quantize_blockwise(x, code=values.clone(), blocksize=256)
    blocks = quantize_through_table(x, values)
    assert torch.equal(blocks.absmax, state.absmax)
    # Fused multiply-add, where a compiler uses it, may choose the neighboring cell.
    assert (blocks.codes != theirs).double().mean() < 1e-3
    largest = blocks.absmax.repeat_interleave(blocks.block_size)[:n]
    exact = (dequantize(quantize(x, values), values) - x).abs() / largest
    through = (bnb_functional.dequantize_blockwise(theirs, state) - x).abs() / largest
    assert (through - exact).max() <= 2 / (CPU_TABLE_CELLS - 1)


@pytest.mark.parametrize("cast", [quantize, quantize_through_table])
def test_a_block_of_zeros_stays_zeros(cast: object) -> None:
    x = torch.cat([torch.zeros(256), torch.ones(256)])
    restored = dequantize(cast(x, dynamic_map()), dynamic_map())  # type: ignore[operator]
    assert torch.equal(restored, x)
    empty = cast(torch.zeros(0), dynamic_map())  # type: ignore[operator]
    assert dequantize(empty, dynamic_map()).shape == (0,)


def test_the_cpu_table_does_not_keep_zero_in_a_block_with_others() -> None:
    x = torch.tensor([0.0, 1.0])
    assert dequantize(quantize(x, dynamic_map(False)), dynamic_map(False))[0] == 0
    assert dequantize(quantize_through_table(x, dynamic_map(False)), dynamic_map(False))[0] > 0


def test_subnormal_magnitudes_are_no_trouble() -> None:
    restored = dequantize(quantize(torch.tensor([1e-42, 0, -1e-42]), dynamic_map()), dynamic_map())
    assert torch.isfinite(restored).all()
    assert torch.isfinite(
        dequantize(quantize_through_table(torch.tensor([1e-42, 0]), dynamic_map()), dynamic_map())
    ).all()


def test_a_block_larger_than_the_tensor_is_one_block() -> None:
    blocks = quantize(torch.randn(10), linear_map(), 10**9)
    assert blocks.absmax.shape == (1,)
    assert blocks.bytes == 10 + 4


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_is_refused(bad: float) -> None:
    with pytest.raises(UserError, match="NaN or infinity"):
        quantize(torch.tensor([1.0, bad]), dynamic_map())


def test_a_block_size_must_be_positive() -> None:
    with pytest.raises(UserError, match="block_size must be positive"):
        quantize(torch.ones(4), dynamic_map(), 0)
