"""Floating-point operations of a training step: by formula, by counting, and as a share of what the hardware can do.

A multiply and an add are two operations. Matrix products are counted, and nothing else: norms, activations and the
optimizer move bytes rather than compute.
"""

from collections.abc import Callable

import torch
from torch.utils.flop_counter import FlopCounterMode

from ..models import ModelShape


def matmul_parameters(shape: ModelShape) -> int:
    """Parameters that take part in a matrix product with each token: blocks and head, no embedding, bias or norm."""
    h, q, kv, f = shape.hidden, shape.q, shape.kv, shape.ffn
    mlp = 2 * h * f if shape.family == "gpt2" else 3 * h * f
    return shape.layers * (h * (q + 2 * kv) + q * h + mlp) + shape.vocab * h


def forward_flops(shape: ModelShape, sequences: int, sequence_length: int, *, causal_half: bool = False) -> int:
    """Operations of one forward pass over `sequences` sequences.

    Each token takes 2 operations for each parameter of a matrix product, and in every block 2 x 2 x q x
    sequence_length for its scores and for their product with the values (PaLM, arXiv 2204.02311, appendix B, whose
    6N + 12LHQT a token is three times this: backward takes two forward passes). With `causal_half`, only the scores
    at and below the diagonal are counted, as a kernel that skips the others computes them.
    """
    tokens = sequences * sequence_length
    scores = sequence_length * (sequence_length + 1) // 2 if causal_half else sequence_length * sequence_length
    return 2 * tokens * matmul_parameters(shape) + 4 * sequences * shape.layers * shape.q * scores


def step_flops(shape: ModelShape, sequences: int, sequence_length: int) -> int:
    """Operations that a step over `sequences` sequences (all micro-batches) needs: forward once, backward twice that.

    What is computed again under activation checkpointing is not among them (see `recomputed_flops`).
    """
    return 3 * forward_flops(shape, sequences, sequence_length)


def recomputed_flops(shape: ModelShape, sequences: int, sequence_length: int, checkpointing: str) -> int:
    """Operations that activation checkpointing, block by block, adds to a step over `sequences` sequences.

    `full` runs each block's forward pass again, but for its last product, the MLP's down projection, whose output no
    backward formula needs (non-reentrant checkpointing stops early); `selective` as in `blocks` repeats no product,
    `selective-half` every second of a block: those of keys, of attention's output and of the MLP's up projection, and
    of GPT-2 the second alone.
    What attention's own backward kernel computes again is not among them. Head and embedding are in no checkpoint.
    """
    tokens = sequences * sequence_length
    if checkpointing == "selective-half":
        others = 0 if shape.family == "gpt2" else shape.hidden * (shape.kv + shape.ffn)
        return 2 * tokens * shape.layers * (shape.q * shape.hidden + others)
    if checkpointing != "full":
        return 0
    again = matmul_parameters(shape) - shape.vocab * shape.hidden - shape.layers * shape.ffn * shape.hidden
    return 2 * tokens * again + 4 * sequences * shape.layers * shape.q * sequence_length**2


def counted_flops(run: Callable[[], object]) -> int:
    """Operations that `run` executes, recomputation included, counted operator by operator with torch's counter."""
    with FlopCounterMode(display=False) as counter:
        run()
    return int(counter.get_total_flops())


def mfu(needed_flops: float, seconds: float, peak_flops_per_second: float) -> float:
    """Model FLOPs utilization: operations needed over those that the device could do in the time (PaLM, appendix B)."""
    return needed_flops / (seconds * peak_flops_per_second)


def hfu(executed_flops: float, seconds: float, peak_flops_per_second: float) -> float:
    """Hardware FLOPs utilization: the same with executed operations, recomputation included (PaLM, appendix B)."""
    return executed_flops / (seconds * peak_flops_per_second)


DENSE_PEAK_TFLOPS: dict[str, dict[str, float]] = {
    "A100": {"fp32": 19.5, "tf32": 156.0, "16-bit": 312.0},
    "H100 PCIe": {"fp32": 51.0, "tf32": 378.0, "16-bit": 756.0},
    "H100": {"fp32": 67.0, "tf32": 494.5, "16-bit": 989.5},
    "H200": {"fp32": 67.0, "tf32": 494.5, "16-bit": 989.5},
    "L4": {"fp32": 30.3, "tf32": 60.0, "16-bit": 121.0},
    "L40S": {"fp32": 91.6, "tf32": 183.0, "16-bit": 362.0},
    "V100": {"fp32": 15.7, "16-bit": 125.0},
}
"""Dense peak rates in TFLOP/s by part of the device's name, from NVIDIA's data sheets (halved where these state figures
"with sparsity"): A100 (2021), H100 and H200 (2023, 2024; SXM unless said), L4 and L40S (2023), V100 (2020)."""


def dense_peak(device_name: str, precision: str) -> float | None:
    """The dense peak of a device in FLOP/s for `fp32`, `tf32` or `16-bit` products; `None` where it is not listed."""
    names = sorted((name for name in DENSE_PEAK_TFLOPS if name in device_name), key=len)
    rate = DENSE_PEAK_TFLOPS[names[-1]].get(precision) if names else None
    return None if rate is None else rate * 1e12


def fp32_products(device: torch.device) -> str:
    """Whether fp32 matrix products on `device` run as fp32 or, on CUDA where it is allowed, as tf32."""
    return "tf32" if device.type == "cuda" and torch.backends.cuda.matmul.allow_tf32 else "fp32"
