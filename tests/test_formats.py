import itertools
import math

import pytest
import torch

from efficient_training.formats import FORMATS, FloatFormat

DTYPES = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "e5m2": torch.float8_e5m2,
    "e4m3": torch.float8_e4m3fn,
}
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


def as_torch_reads(name: str, patterns: list[int]) -> list[float]:
    """The numbers that PyTorch finds in these bit patterns."""
    dtype = DTYPES[name]
    bits = 8 * dtype.itemsize
    signed = patterns if bits == 8 else [p - 2**bits if p >= 2 ** (bits - 1) else p for p in patterns]
    values: list[float] = torch.tensor(signed, dtype=INTEGERS[dtype.itemsize]).view(dtype).double().tolist()
    return values


def same(a: float, b: float) -> bool:
    return (math.isnan(a) and math.isnan(b)) or (a == b and math.copysign(1, a) == math.copysign(1, b))


@pytest.mark.parametrize("name", ["bf16", "fp16", "e5m2", "e4m3"])
def test_every_pattern_decodes_to_what_torch_reads(name: str) -> None:
    patterns = list(range(2 ** FORMATS[name].bits))
    wrong = [
        p
        for p, value in zip(patterns, as_torch_reads(name, patterns), strict=True)
        if not same(FORMATS[name].decode(p), value)
    ]
    assert not wrong


def test_fp32_patterns_decode_to_what_torch_reads() -> None:
    """One in 65,537, a stride coprime to every field's length, and both ends of each exponent."""
    edges = [
        (sign << 31) | (exponent << 23) | m for sign in (0, 1) for exponent in range(256) for m in (0, 1, 2**23 - 1)
    ]
    patterns = [*range(0, 2**32, 65_537), *edges]
    values = as_torch_reads("fp32", patterns)
    assert all(same(FORMATS["fp32"].decode(p), value) for p, value in zip(patterns, values, strict=True))


def test_tf32_is_fp32_without_its_last_13_bits() -> None:
    patterns = list(range(0, 2**19, 7))
    values = as_torch_reads("fp32", [p << 13 for p in patterns])
    assert all(same(FORMATS["tf32"].decode(p), value) for p, value in zip(patterns, values, strict=True))


@pytest.mark.parametrize("name", DTYPES)
def test_limits_agree_with_finfo(name: str) -> None:
    ours, theirs = FORMATS[name], torch.finfo(DTYPES[name])
    assert (ours.bits, ours.max, ours.epsilon, ours.smallest_normal) == (
        theirs.bits,
        theirs.max,
        theirs.eps,
        theirs.smallest_normal,
    )


@pytest.mark.parametrize("name", ["bf16", "fp16", "e5m2", "e4m3"])
def test_spacing_is_the_distance_between_neighbors(name: str) -> None:
    fmt = FORMATS[name]
    values = [v for v in map(fmt.decode, range(2 ** (fmt.bits - 1))) if math.isfinite(v)]
    assert all(fmt.spacing(a) == b - a == fmt.spacing(-a) for a, b in itertools.pairwise(values))
    assert values[1] == fmt.smallest_subnormal
    assert values[-1] == fmt.max


def test_spacing_beyond_the_range_is_refused() -> None:
    for x in (65_505.0, math.inf, math.nan):
        with pytest.raises(ValueError, match="fp16"):
            FORMATS["fp16"].spacing(x)


def test_a_pattern_with_too_many_bits_is_refused() -> None:
    for pattern in (-1, 256):
        with pytest.raises(ValueError, match="8 bits"):
            FloatFormat("mini", 4, 3).decode(pattern)
