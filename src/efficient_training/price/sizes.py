"""The named sizes in which the price of a step is written, and their values for a workload and a recipe."""

from collections.abc import Mapping
from typing import Any

from ..chunks import CHUNK_BYTES
from ..models import ModelShape
from .algebra import Size
from .ops import maximum, minimum

BATCH = Size.named("batch")
"""Sequences of a micro-batch."""
TWO_SEQUENCES = Size.named("two_sequences")
"""1 where a micro-batch has two sequences or more, else 0."""
SEQUENCE = Size.named("sequence")
"""Tokens of a sequence."""
PADDED_SEQUENCE = Size.named("padded_sequence")
"""`sequence`, up to a multiple of 32."""
PADDED_ROW = Size.named("padded_row")
"""`sequence`, up to a multiple of 8."""
RAGGED = Size.named("ragged")
"""1 where `sequence` is no multiple of 8, else 0."""
HIDDEN = Size.named("hidden")
HEADS = Size.named("heads")
KV_HEADS = Size.named("kv_heads")
HEAD_DIM = Size.named("head_dim")
HALF_HEAD = Size.named("half_head")
"""Half of head_dim, which rotary embeddings exchange."""
PADDED_HEAD_DIM = Size.named("padded_head_dim")
"""`head_dim`, up to a multiple of 8."""
FFN = Size.named("ffn")
VOCABULARY = Size.named("vocabulary")
POSITIONS = Size.named("positions")
FURTHER_BLOCKS = Size.named("further_blocks")
"""Blocks after the first."""
FURTHER_SEGMENTS = Size.named("further_segments")
"""Checkpointed segments after the first."""
FURTHER_IN_SEGMENT = Size.named("further_in_segment")
"""Blocks of a whole segment after its first."""
FURTHER_IN_LAST = Size.named("further_in_last")
"""Blocks of the last segment after its first."""
TWO_BLOCKS = Size.named("two_blocks")
"""1 where there are two blocks or more, else 0."""
TWO_IN_SEGMENT = Size.named("two_in_segment")
"""1 where a whole segment has two blocks or more, else 0."""
TWO_IN_LAST = Size.named("two_in_last")
"""1 where the last segment has two blocks or more, else 0."""
TWO_SEGMENTS = Size.named("two_segments")
"""1 where there are two segments or more, else 0."""
CHUNK = Size.named("chunk")
"""Tokens of the first chunk of a chunked loss."""
LAST_CHUNK = Size.named("last_chunk")
"""Tokens of its last chunk."""
TWO_CHUNKS = Size.named("two_chunks")
"""1 where there are two chunks or more, else 0."""

THREE_BLOCKS = Size.named("three_blocks")
FOUR_BLOCKS = Size.named("four_blocks")
THREE_SEGMENTS = Size.named("three_segments")
FOUR_SEGMENTS = Size.named("four_segments")
"""1 where there are three, or four, blocks or segments or more, else 0."""
RANK = Size.named("rank")
"""Rank of an adapter."""
RANKS = Size.named("ranks")
"""Ranks among which one copy of the model is divided."""
OWNED = Size.named("owned")
"""Elements of the parameters whose optimizer state a rank holds under ZeRO-1, of the rank that holds most."""
OWNED_PARAMETERS = Size.named("owned_parameters")
"""The number of those parameters."""
OWNED_STEP = Size.named("owned_step")
"""Elements at the peak of a loop over them: twice those of one, and those of the one before."""

TOKENS = BATCH * SEQUENCE
Q = HEADS * HEAD_DIM
KV = KV_HEADS * HEAD_DIM


def named_sizes(
    *,
    batch: Any,
    sequence: Any,
    hidden: Any,
    layers: Any,
    heads: Any,
    kv_heads: Any,
    head_dim: Any,
    ffn: Any,
    vocabulary: Any,
    positions: Any,
    checkpoint_every: Any = 1,
) -> Mapping[str, Any]:
    """The value of each name, from ints, arrays or recorded expressions alike."""
    in_segment = minimum(checkpoint_every, layers)
    segments = (layers + in_segment - 1) // in_segment
    in_last = layers - (segments - 1) * in_segment
    tokens = batch * sequence
    chunk = minimum(maximum(CHUNK_BYTES // (4 * vocabulary), 1), tokens)
    chunks = (tokens + chunk - 1) // chunk
    return {
        "batch": batch,
        "two_sequences": minimum(batch - 1, 1),
        "sequence": sequence,
        "padded_sequence": (sequence + 31) // 32 * 32,
        "padded_row": (sequence + 7) // 8 * 8,
        "ragged": minimum((sequence + 7) // 8 * 8 - sequence, 1),
        "hidden": hidden,
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "half_head": head_dim // 2,
        "padded_head_dim": (head_dim + 7) // 8 * 8,
        "ffn": ffn,
        "vocabulary": vocabulary,
        "positions": positions,
        "further_blocks": layers - 1,
        "further_segments": segments - 1,
        "further_in_segment": in_segment - 1,
        "further_in_last": in_last - 1,
        "two_blocks": minimum(layers - 1, 1),
        "two_segments": minimum(segments - 1, 1),
        "two_in_segment": minimum(in_segment - 1, 1),
        "two_in_last": minimum(in_last - 1, 1),
        "chunk": chunk,
        "last_chunk": tokens - (chunks - 1) * chunk,
        "two_chunks": minimum(chunks - 1, 1),
    }


def rows(dimension: str) -> Size:
    """Rows of a shard of a parameter whose first dimension is `dimension`: a part for each rank, rounded up."""
    return Size.named(f"rows_{dimension}")


def sharded_sizes(sizes: Mapping[str, Any], ranks: Any) -> dict[str, Any]:
    """`sizes` with what FSDP2's shards depend on besides: `ranks`, an int, an array or an expression."""
    whole = {
        "vocabulary": sizes["vocabulary"],
        "positions": sizes["positions"],
        "hidden": sizes["hidden"],
        "three_hidden": 3 * sizes["hidden"],
        "q": sizes["heads"] * sizes["head_dim"],
        "kv": sizes["kv_heads"] * sizes["head_dim"],
        "head_dim": sizes["head_dim"],
        "ffn": sizes["ffn"],
    }
    parts = {f"rows_{name}": (size + ranks - 1) // ranks for name, size in whole.items()}
    return {**sizes, **parts, **several(sizes), "ranks": ranks}


def several(sizes: Mapping[str, Any]) -> dict[str, Any]:
    """Whether there are three or four blocks, or segments, or more: 1, else 0."""
    return {
        f"{word}_{what}": minimum(maximum(sizes[f"further_{what}"] - less, 0), 1)
        for what in ("blocks", "segments")
        for word, less in (("three", 1), ("four", 2))
    }


def sizes_of(shape: ModelShape, *, batch: int = 1, sequence: int = 1, checkpoint_every: int = 1) -> Mapping[str, Any]:
    """The named sizes of a model, for a micro-batch of `batch` sequences of `sequence` tokens."""
    return named_sizes(
        batch=batch,
        sequence=sequence,
        hidden=shape.hidden,
        layers=shape.layers,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        ffn=shape.ffn,
        vocabulary=shape.vocab,
        positions=shape.positions,
        checkpoint_every=checkpoint_every,
    )
