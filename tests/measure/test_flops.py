import pytest
import torch

from efficient_training.measure.flops import (
    counted_flops,
    dense_peak,
    forward_flops,
    hfu,
    matmul_parameters,
    mfu,
    recomputed_flops,
    step_flops,
)
from efficient_training.models import ModelShape, load_shape
from efficient_training.recipe import Recipe
from efficient_training.run import build_trainer

SHAPES = [
    ModelShape("q2", "qwen2", 64, 3, 4, 2, 16, 176, 200, 512, True),
    ModelShape("ll", "llama", 64, 2, 4, 4, 16, 144, 200, 512, False),
    ModelShape("q3", "qwen3", 64, 2, 4, 2, 32, 144, 200, 512, True),
    ModelShape("g", "gpt2", 64, 2, 4, 4, 16, 256, 200, 512, True),
]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_the_formula_is_what_torch_counts(shape: ModelShape) -> None:
    """With attention written out (math), so that every product is there to be counted."""
    trainer = build_trainer(shape, Recipe(2, attention="math"))
    ids = torch.randint(0, shape.vocab, (2, 32))
    with torch.no_grad():
        forward = counted_flops(lambda: trainer._loss(ids, ids))
    assert forward == forward_flops(shape, 2, 32)
    step = counted_flops(lambda: trainer.step([ids]))
    assert step == step_flops(shape, 2, 32)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
@pytest.mark.parametrize("checkpointing", ["full", "selective", "selective-half"])
def test_what_checkpointing_executes_beyond_what_a_step_needs(shape: ModelShape, checkpointing: str) -> None:
    trainer = build_trainer(shape, Recipe(2, attention="math", checkpointing=checkpointing))  # type: ignore[arg-type]
    ids = torch.randint(0, shape.vocab, (2, 32))
    more = counted_flops(lambda: trainer.step([ids])) - step_flops(shape, 2, 32)
    assert more == recomputed_flops(shape, 2, 32, checkpointing)


def test_a_causal_kernel_computes_about_half_the_scores() -> None:
    shape = SHAPES[1]
    full, half = forward_flops(shape, 1, 1000), forward_flops(shape, 1, 1000, causal_half=True)
    scores = 4 * shape.layers * shape.q
    assert full - half == scores * (1000 * 1000 - 1000 * 1001 // 2)


def test_palm_formula() -> None:
    """6N + 12LHQT a token, N without embeddings that are only looked up (PaLM, appendix B)."""
    shape = load_shape("llama-2-7b")
    per_token = step_flops(shape, 1, 2048) / 2048
    assert per_token == 6 * matmul_parameters(shape) + 12 * shape.layers * shape.q * 2048


def test_utilization_is_a_share_of_the_peak() -> None:
    assert mfu(5e11, 1.0, 1e12) == 0.5
    assert hfu(6e11, 1.0, 1e12) == 0.6


@pytest.mark.parametrize(
    ("name", "precision", "tflops"),
    [
        ("NVIDIA H100 80GB HBM3", "16-bit", 989.5),
        ("NVIDIA H100 PCIe", "16-bit", 756.0),
        ("NVIDIA L40S", "16-bit", 362.0),
        ("NVIDIA L4", "16-bit", 121.0),
        ("NVIDIA A100-SXM4-40GB", "tf32", 156.0),
    ],
)
def test_the_peak_is_that_of_the_longest_name_that_fits(name: str, precision: str, tflops: float) -> None:
    assert dense_peak(name, precision) == tflops * 1e12


def test_an_unknown_device_has_no_peak_and_so_no_utilization() -> None:
    assert dense_peak("NVIDIA GeForce RTX 9999", "16-bit") is None
    assert dense_peak("Tesla V100-SXM2-16GB", "tf32") is None
