"""8-bit block-wise quantization, from scratch: how low-bit optimizers keep their state.

Values are cut into blocks of consecutive elements. Each block keeps its largest magnitude, in fp32, and for every
element the number of the nearest value in a sorted table of 2**bits values within [-1, 1], the map. Dettmers et al.,
"8-bit Optimizers via Block-wise Quantization", arXiv 2110.02861, section 2.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from .errors import UserError

BLOCK_SIZE = 256
"""Elements in a block of bitsandbytes' optimizers since its version 0.44 (2,048 in the paper), and of torchao's."""

CPU_TABLE_CELLS = 65536
"""Cells of the table through which bitsandbytes' CPU kernel looks codes up (csrc/cpu_ops.cpp, kLUTSize)."""


@dataclass(frozen=True)
class Blocks:
    """A quantized tensor: `codes` (uint8, shaped as the original) and `absmax` (fp32, one for each block)."""

    codes: torch.Tensor
    absmax: torch.Tensor
    block_size: int

    @property
    def bytes(self) -> int:
        """Bytes of codes (one byte each, also for maps of fewer than 8 bits) and of the blocks' magnitudes."""
        return self.codes.nbytes + self.absmax.nbytes


def dynamic_map(signed: bool = True, bits: int = 8) -> torch.Tensor:
    """The sorted fp32 values of the dynamic tree data type: 2**bits of them, from about -1 (or from 0) to 1.

    There are bits - 1 decades, the highest from 0.1 to 1. The lowest is one cell, each further one is cut into twice as
    many equal cells (and twice as many again where no sign is needed). A cell is represented by its middle; zero and
    one are added. Arithmetic in fp32, as in bitsandbytes' `create_dynamic_map`.
    """
    values = [0.0, 1.0]
    for decade in range(bits - 1):
        edges = torch.linspace(0.1, 1, 2 ** (decade + (not signed)) + 1, dtype=torch.float32)
        middles = 10 ** (decade - bits + 2) * ((edges[:-1] + edges[1:]) / 2)
        values += middles.tolist()
        if signed:
            values += (-middles).tolist()
    return torch.tensor(sorted(values), dtype=torch.float32)


def linear_map(signed: bool = True, bits: int = 8) -> torch.Tensor:
    """Evenly spaced values, zero among them: from -1 to 1 (one value fewer than 2**bits), or from 0 to 1."""
    if signed:
        return torch.linspace(-1, 1, 2**bits - 1, dtype=torch.float32)
    return torch.linspace(0, 1, 2**bits, dtype=torch.float32)


def quantize(x: torch.Tensor, values: torch.Tensor, block_size: int = BLOCK_SIZE) -> Blocks:
    """Each element's nearest of the sorted `values`, of two equally near ones the lower, times its block's magnitude.

    The last block may be shorter. Raises `UserError` where an element is not finite: it would spoil its whole block.
    """
    rows, absmax, size = _blocks(x, block_size)
    scaled = rows / torch.where(absmax == 0, 1.0, absmax)[:, None]
    codes = torch.bucketize(scaled, (values[:-1] + values[1:]) / 2)
    return Blocks(_unblocked(codes, x), absmax, size)


def quantize_through_table(x: torch.Tensor, values: torch.Tensor, block_size: int = BLOCK_SIZE) -> Blocks:
    """As bitsandbytes' CPU kernel does it: [-1, 1] in 65,536 even steps, and for each step the value nearest to it.

    The steps are 3e-5 apart, far wider than the map's values near zero, which are therefore never reached.
    A block of zeros gets code 0; with a magnitude of zero it still stands for zeros.
    """
    steps = torch.arange(CPU_TABLE_CELLS, dtype=torch.float32)
    table = torch.searchsorted((values[:-1] + values[1:]) / 2, -1.0 + 2.0 * steps / (CPU_TABLE_CELLS - 1))
    rows, absmax, size = _blocks(x, block_size)
    scaled = (rows * (1 / absmax)[:, None]).nan_to_num().clamp(-1, 1)
    codes = table[((scaled + 1) * 0.5 * (CPU_TABLE_CELLS - 1) + 0.5).long()]
    return Blocks(_unblocked(codes.masked_fill(absmax[:, None] == 0, 0), x), absmax, size)


def dequantize(blocks: Blocks, values: torch.Tensor) -> torch.Tensor:
    """The fp32 values that the codes stand for, in the original's shape."""
    padded = F.pad(values[blocks.codes.long().flatten()], (0, -blocks.codes.numel() % blocks.block_size))
    return _unblocked(padded.view(-1, blocks.block_size) * blocks.absmax[:, None], blocks.codes)


def _blocks(x: torch.Tensor, block_size: int) -> tuple[torch.Tensor, torch.Tensor, int]:
    """The elements as (blocks, size), zeros at the end, the largest magnitude of each block, and the size.

    A tensor shorter than a block is one block of its own size.
    """
    if block_size < 1:
        raise UserError(f"block-wise quantization: block_size must be positive, got {block_size}")
    if not torch.isfinite(x).all():
        raise UserError("block-wise quantization: the tensor holds NaN or infinity; find the step that made it")
    size = max(1, min(block_size, x.numel()))
    rows = F.pad(x.detach().flatten().float(), (0, -x.numel() % size)).view(-1, size)
    return rows, rows.abs().amax(1), size


def _unblocked(rows: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    flat = rows.flatten()[: like.numel()].view(like.shape)
    return flat if flat.is_floating_point() else flat.to(torch.uint8)
