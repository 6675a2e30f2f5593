"""How a chunked loss cuts its tokens: known without torch, as the price needs it too."""

CHUNK_BYTES = 64 * 2**20
"""The chunked loss holds about this many bytes of fp32 logits at a time."""


def chunk_rows(vocabulary: int) -> int:
    """Tokens whose fp32 logits fill `CHUNK_BYTES`, at least one."""
    return max(1, CHUNK_BYTES // (4 * vocabulary))
