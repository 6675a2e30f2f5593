"""NF4 with double quantization, from scratch, and its bytes: how QLoRA keeps frozen weights.

Dettmers et al., "QLoRA", arXiv 2305.14314, section 3. The bytes and the order of arithmetic are read off bitsandbytes
0.50 (`functional.py`, `backends/default/ops.py`), and tests compare both with it.
"""

import math
from dataclasses import dataclass
from statistics import NormalDist

import torch
import torch.nn.functional as F

from .errors import UserError

BLOCK_SIZE = 64
"""Weights that share a scale."""

SCALE_BLOCK_SIZE = 256
"""Scales that share a scale of their own under double quantization."""

OFFSET = 0.9677083
"""The outermost probability of the normal distribution for which a value is made (bitsandbytes' `create_normal_map`):
the mean of 1 - 1/32 and 1 - 1/30, since the largest probability itself would have an infinite quantile."""


@dataclass(frozen=True)
class Nf4Bytes:
    """Bytes of one or more NF4 tensors: `codes` (half a byte each), `scales` with their own scales, and `tables`."""

    codes: int = 0
    scales: int = 0
    tables: int = 0

    @property
    def total(self) -> int:
        """All of it."""
        return self.codes + self.scales + self.tables

    def __add__(self, other: "Nf4Bytes") -> "Nf4Bytes":
        return Nf4Bytes(self.codes + other.codes, self.scales + other.scales, self.tables + other.tables)


def nf4_bytes(elements: int, double: bool = True) -> Nf4Bytes:
    """Bytes that bitsandbytes keeps for one tensor of `elements` weights in NF4.

    Codes take ceil(n / 2) bytes. There are b = ceil(n / 64) scales: 4 b bytes in fp32; under double quantization b
    codes of a byte and ceil(b / 256) fp32 scales of these. Each tensor has a table of 16 fp32 values; under double
    quantization also the table of the scales' 256 values, and an fp32 offset.
    """
    if elements < 1:
        raise UserError(f"NF4: a tensor to quantize must have elements, got {elements}")
    blocks = math.ceil(elements / BLOCK_SIZE)
    scales = blocks + 4 * math.ceil(blocks / SCALE_BLOCK_SIZE) if double else 4 * blocks
    return Nf4Bytes(math.ceil(elements / 2), scales, 16 * 4 + (256 * 4 + 4 if double else 0))


def nf4_table() -> torch.Tensor:
    """The 16 sorted fp32 values: quantiles of the normal distribution, 8 above zero, 7 below, and zero; scaled to 1."""
    quantile = NormalDist().inv_cdf
    above = [quantile(OFFSET + (0.5 - OFFSET) * i / 8) for i in range(8)]
    below = [-quantile(OFFSET + (0.5 - OFFSET) * i / 7) for i in range(7)]
    return torch.tensor(sorted([*above, 0.0, *below]), dtype=torch.float64).div(max(above)).float()


def nf4_codes(weight: torch.Tensor, table: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The packed codes (uint8, two a byte, the first in the high half) and the fp32 scales, one a block of 64.

    A scale is the block's largest magnitude; a code is the number of the nearest of `table`'s values.
    Raises `UserError` where a weight is not finite.
    """
    if not torch.isfinite(weight).all():
        raise UserError("NF4: the tensor holds NaN or infinity, which would spoil the whole block")
    flat = weight.detach().flatten().float()
    rows = F.pad(flat, (0, -len(flat) % BLOCK_SIZE)).view(-1, BLOCK_SIZE)
    scales = rows.abs().amax(1)
    scaled = (rows * (1 / scales.clamp(min=1e-38))[:, None]).clamp(-1, 1).flatten()[: len(flat)]
    codes = torch.bucketize(F.pad(scaled, (0, len(flat) % 2)), (table[:-1] + table[1:]) / 2).to(torch.uint8)
    return codes[::2] << 4 | codes[1::2], scales


def nf4_values(packed: torch.Tensor, scales: torch.Tensor, table: torch.Tensor, elements: int) -> torch.Tensor:
    """The fp32 values that packed codes and scales stand for, flat."""
    codes = torch.stack([packed >> 4, packed & 15], 1).flatten()[:elements].long()
    return table[codes] * scales.repeat_interleave(BLOCK_SIZE)[:elements]
