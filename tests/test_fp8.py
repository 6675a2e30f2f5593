"""Scaling to fp8, its refusals, and the names of Transformer Engine that the notebook uses."""

import ast
import json
import sys
from collections.abc import Iterator
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch
from torchao.float8 import Float8LinearConfig, convert_to_float8_training
from torchao.float8.config import ScalingGranularity
from torchao.float8.float8_utils import tensor_to_scale, to_fp8_saturated
from torchao.prototype.mx_formats.mx_tensor import to_mx
from torchao.prototype.mx_formats.nvfp4_tensor import nvfp4_quantize, per_tensor_amax_to_scale

from efficient_training import fp8
from efficient_training.errors import UserError
from efficient_training.fp8 import E4M3, E5M2, DelayedScale, per_row, per_tensor, saturate
from efficient_training.gemm import Rates, gemm_seconds, smallest_winner
from efficient_training.measure.saved import saved_tensors

ROOT = Path(__file__).parents[1]
NOTEBOOK = ROOT / "notebooks" / "08-fp8.ipynb"
TE_VERSION = "2.20.2"


def spread(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator) * torch.exp(2 * torch.randn(*shape, generator=generator))


@pytest.mark.parametrize("dtype", [E4M3, E5M2])
def test_saturating_cast_is_the_nearest_number_and_ties_go_to_even(dtype: torch.dtype) -> None:
    values = torch.arange(127 if dtype == E4M3 else 124, dtype=torch.uint8).view(dtype).float()
    middles = (values[:-1] + values[1:]) / 2
    even = torch.where(torch.arange(len(middles)) % 2 == 0, values[:-1], values[1:])
    assert torch.equal(saturate(middles, dtype).float(), even)
    largest = torch.finfo(dtype).max
    beyond = torch.tensor([largest * 1.2, -1e30, float("inf"), float("-inf")])
    assert saturate(beyond, dtype).float().tolist() == [largest, -largest, largest, -largest]
    assert saturate(torch.tensor([float("nan")]), dtype).float().isnan().all()


def test_rows_and_tensor_bring_the_amax_to_the_largest_number() -> None:
    x = spread(6, 40)
    x[2] = 0
    assert per_tensor(x).data.float().abs().max() == 448
    rows = per_row(x).data.float().abs().amax(1)
    assert rows[[0, 1, 3, 4, 5]].eq(448).all()
    assert rows[2] == 0
    halved = fp8.scale_of(x.abs().max(), E4M3, margin=1)
    assert halved == fp8.scale_of(x.abs().max(), E4M3) / 2


@pytest.mark.parametrize("dtype", [E4M3, E5M2])
def test_mx_is_torchaos(dtype: torch.dtype) -> None:
    x = spread(16, 64, seed=1)
    x[3], x[4, :32], x[5] = 0, 1e-30, 1e38
    scales, data = to_mx(x, dtype, fp8.MX_BLOCK)
    ours = fp8.mx(x, dtype)
    assert ours.exponents is not None
    assert torch.equal(ours.exponents, scales.view(torch.uint8))
    assert torch.equal(ours.data.view(torch.uint8), data.view(torch.uint8))


def test_nvfp4_is_torchaos_and_ties_go_to_even() -> None:
    x = spread(16, 64, seed=2)
    x[3], x[4, :16] = 0, torch.tensor([6, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0] * 2)
    ours = fp8.nvfp4(x)
    total = per_tensor_amax_to_scale(x.abs().max())
    scales, packed = nvfp4_quantize(x, per_tensor_scale=total)
    assert ours.scales is not None
    assert ours.global_scale is not None
    assert torch.equal(ours.global_scale, total)
    assert torch.equal(ours.scales.float(), scales.view_as(ours.scales).float())
    assert torch.equal(ours.data, torch.stack([packed & 15, packed >> 4], -1).flatten(-2))
    exact = torch.tensor([[6, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0] * 2]) * 448
    assert fp8.nvfp4(exact).data[0, :8].tolist() == [7, 0, 2, 2, 4, 4, 6, 6]
    assert fp8.nvfp4(torch.zeros(2, 16)).dequantize().eq(0).all()


def test_a_blocks_values_come_back_within_half_a_step() -> None:
    x = spread(8, 64, seed=3)
    restored = fp8.mx(x).dequantize()
    largest = x.view(8, 2, 32).abs().amax(-1, keepdim=True).expand(8, 2, 32).reshape(8, 64)
    # 2**-4 of a normal number; saturation costs the largest at most an eighth; half of the subnormal spacing below.
    assert ((restored - x).abs() <= (x.abs() / 8).maximum(largest * 2.0**-17)).all()


def test_delayed_scale_uses_only_earlier_amaxes() -> None:
    delayed = DelayedScale(length=2)
    assert delayed.quantize(torch.tensor([4.0])).scale == 1
    assert delayed.quantize(torch.tensor([1000.0])).dequantize() == 4.0  # scaled by 448 / 4, it saturates
    assert delayed.quantize(torch.tensor([4.0])).scale == pytest.approx(0.448)
    assert delayed.quantize(torch.tensor([4.0])).scale == pytest.approx(0.448)
    assert delayed.quantize(torch.tensor([4.0])).scale == pytest.approx(112)


def test_delayed_scale_keeps_its_scale_over_zeros() -> None:
    delayed = DelayedScale(length=1)
    delayed.quantize(torch.tensor([2.0]))
    before = delayed.scale
    delayed.quantize(torch.zeros(3))
    assert delayed.scale == before


def test_hybrid_linear_is_torchaos_emulated_one() -> None:
    x, w, g = spread(32, 64, seed=4), spread(48, 64, seed=5), spread(32, 48, seed=6)
    plain: Any = torch.nn.Sequential(torch.nn.Linear(64, 48, bias=False))
    plain[0].weight.data.copy_(w)
    theirs: Any = convert_to_float8_training(plain, config=Float8LinearConfig(emulate=True))
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    weight = w.clone().requires_grad_()
    out, expected = fp8.linear(a, weight), theirs(b)
    out.backward(g)
    expected.backward(g)
    for ours, other in ((out, expected), (a.grad, b.grad), (weight.grad, theirs[0].weight.grad)):
        assert other is not None
        torch.testing.assert_close(ours, other, rtol=1e-4, atol=1e-4 * other.abs().max().item())


def test_one_layout_gives_the_same_and_keeps_transposed_copies() -> None:
    x, w, g = spread(32, 64, seed=4), spread(48, 64, seed=5).requires_grad_(), spread(32, 48, seed=6)
    results = {}
    for one_layout in (False, True):
        inputs = x.clone().requires_grad_()
        with saved_tensors(exclude=[w]) as saved:
            out = fp8.linear(inputs, w, one_layout=one_layout)
        kept = sorted(each.shape for each in saved.tensors if each.dtype == E4M3)
        assert kept == ([(48, 64), (64, 32), (64, 48)] if one_layout else [(32, 64), (48, 64)])
        results[one_layout] = (out, *torch.autograd.grad(out, (inputs, w), g))
    for first, second in zip(results[False], results[True], strict=True):
        torch.testing.assert_close(first, second, rtol=1e-4, atol=1e-4 * second.abs().max().item())


@pytest.mark.parametrize("power_of_two", [False, True])
@pytest.mark.parametrize("dtype", [E4M3, E5M2])
def test_rows_are_torchaos(dtype: torch.dtype, power_of_two: bool) -> None:
    x = spread(16, 64, seed=7)
    x[3] = 0
    ours = per_row(x, dtype, power_of_two=power_of_two)
    scale = tensor_to_scale(
        x,
        dtype,
        scaling_granularity=ScalingGranularity.AXISWISE,
        axiswise_dim=-1,
        round_scales_to_power_of_2=power_of_two,
    )
    assert torch.equal(ours.scale, scale)
    assert torch.equal(ours.data.view(torch.uint8), to_fp8_saturated(x * scale, dtype).view(torch.uint8))


def test_refusals_are_one_clear_line() -> None:
    nan = torch.tensor([1.0, float("nan")])
    for call, words in (
        (lambda: per_tensor(nan), "amax is NaN or infinite"),
        (lambda: per_tensor(torch.tensor([float("inf")])), "amax is NaN or infinite"),
        (lambda: DelayedScale().quantize(nan), "amax is NaN or infinite"),
        (lambda: fp8.mx(nan.repeat(16)), "amax is NaN or infinite"),
        (lambda: fp8.mx(torch.ones(2, 40)), "blocks of 32 do not divide the last dimension, 40"),
        (lambda: fp8.nvfp4(torch.ones(2, 40)), "blocks of 16 do not divide the last dimension, 40"),
        (lambda: saturate(nan, torch.float16), "torch.float16 is not supported"),
        (lambda: fp8.require("mxfp8", (9, 0)), "needs compute capability 10.0, found 9.0"),
        (lambda: fp8.require("tensor", None), "needs compute capability 8.9, found a CPU"),
        (lambda: fp8.require("fp6", (10, 0)), "no recipe 'fp6'"),  # type: ignore[arg-type]
        (lambda: DelayedScale(length=0), "length of at least 1"),
    ):
        with pytest.raises(UserError, match=words) as caught:
            call()
        assert "\n" not in str(caught.value)
    fp8.require("row", (9, 0))
    fp8.require("nvfp4", (12, 0))


def test_the_model_of_products() -> None:
    rates = Rates(bf16=1e12, fp8=2e12, memory=1e12, launch=0)
    size = 2**14
    assert gemm_seconds(size, size, size, rates, fp8=False) == pytest.approx(2 * size**3 / 1e12)
    casts = 2 * 5 * size**2 / 1e12
    assert gemm_seconds(size, size, size, rates, fp8=True) == pytest.approx(size**3 / 1e12 + casts)
    once = gemm_seconds(size, size, size, rates, fp8=True, weight_cast=False)
    assert once == pytest.approx(size**3 / 1e12 + casts / 2)
    assert smallest_winner(Rates(1e12, 1e12, 1e12)) is None
    assert smallest_winner(rates) is not None


# The contract with Transformer Engine: it cannot be imported without a GPU, but its sources can be read.


@cache
def te_sources() -> Path:
    """The package's folder: beside the environment (see environments/cpu/post.txt), or where it is installed."""
    aside = Path(sys.prefix) / "sources"
    if (aside / f"transformer_engine-{TE_VERSION}.dist-info").is_dir():
        return aside / "transformer_engine"
    try:
        found = metadata.distribution("transformer-engine")
    except metadata.PackageNotFoundError:
        pytest.skip(f"pip install --no-deps --target {aside} transformer-engine=={TE_VERSION}")
    assert found.version == TE_VERSION
    return Path(str(found.locate_file("transformer_engine")))


def exported(init: Path, name: str) -> ast.ClassDef | ast.FunctionDef:
    """The class or function that `init` defines as `name`, or imports under it."""
    for node in ast.parse(init.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            return node
        if isinstance(node, ast.ImportFrom) and any((a.asname or a.name) == name for a in node.names):
            module = te_sources().parent.joinpath(*str(node.module).split(".")) if not node.level else None
            if module is None:
                module = init.parent / str(node.module).replace(".", "/")
            path = module / "__init__.py" if module.is_dir() else module.with_suffix(".py")
            return exported(path, name)
    raise AssertionError(f"{init} has no {name}")


def arguments(node: ast.ClassDef | ast.FunctionDef) -> set[str]:
    """Names that a call may give: of the function, of `__init__`, or the fields of a dataclass."""
    if isinstance(node, ast.FunctionDef):
        return {a.arg for a in [*node.args.args, *node.args.kwonlyargs]}
    for item in node.body:
        if isinstance(item, ast.FunctionDef) and item.name == "__init__":
            return arguments(item) - {"self"}
    return {
        item.target.id for item in node.body if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
    }


def notebook_uses() -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Module alias, name, and keywords given, of every use of `te` and `te_recipe` in the notebook."""
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    for cell in cells:
        if cell["cell_type"] != "code":
            continue
        tree = ast.parse("".join(cell["source"]))
        calls = {id(n.func): tuple(str(k.arg) for k in n.keywords) for n in ast.walk(tree) if isinstance(n, ast.Call)}
        for node in ast.walk(tree):
            of = getattr(node, "value", None)
            if isinstance(node, ast.Attribute) and isinstance(of, ast.Name) and of.id in ("te", "te_recipe"):
                yield of.id, node.attr, calls.get(id(node), ())


def test_transformer_engine_has_every_name_and_argument_that_the_notebook_uses() -> None:
    inits = {"te": te_sources() / "pytorch" / "__init__.py", "te_recipe": te_sources() / "common/recipe/__init__.py"}
    uses = list(notebook_uses())
    assert {name for _, name, _ in uses} >= {"autocast", "TransformerLayer", "DelayedScaling", "NVFP4BlockScaling"}
    for module, name, keywords in uses:
        assert set(keywords) <= arguments(exported(inits[module], name)), name
    for name in ("is_fp8_available", "is_mxfp8_available", "is_nvfp4_available", "is_fp8_block_scaling_available"):
        assert "return_reason" in arguments(exported(inits["te"], name))


def test_transformer_engine_says_what_the_chapter_says_of_it() -> None:
    recipes = (te_sources() / "common/recipe/__init__.py").read_text(encoding="utf-8")
    tree = ast.parse(recipes)
    defaults = {
        node.name: {
            item.target.id: ast.unparse(item.value)
            for item in node.body
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name) and item.value is not None
        }
        for node in tree.body
        if isinstance(node, ast.ClassDef)
    }
    for name in ("DelayedScaling", "Float8CurrentScaling"):
        assert defaults[name]["fp8_format"] == "Format.HYBRID"
    for name in ("MXFP8BlockScaling", "Float8BlockScaling"):
        assert defaults[name]["fp8_format"] == "Format.E4M3"
    assert defaults["DelayedScaling"]["amax_history_len"] == "1024"
    assert "backward_override" in defaults["Float8CurrentScaling"]
    quantization = (te_sources() / "pytorch/quantization.py").read_text(encoding="utf-8")
    assert "if get_device_compute_capability() < (8, 9):" in quantization
    assert quantization.count("if get_device_compute_capability() >= (10, 0):") == 2
    assert "sf = torch.where(torch.isfinite(amax), sf, scale)" in quantization


def test_the_sources_check_finds_a_wrong_name() -> None:
    with pytest.raises(AssertionError, match="fp9_autocast"):
        exported(te_sources() / "pytorch" / "__init__.py", "fp9_autocast")
