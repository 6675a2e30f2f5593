"""Packing: several sequences in one row, so that little is padded, and none sees another.

`plan` and `decreasing` decide by lengths alone which sequences share a pack; `batch` builds what a model needs to keep
them apart, and refuses what would not; `attention` computes within documents only.
"""

from .decreasing import best_fit_decreasing, first_fit_decreasing
from .plan import Packing, cut_documents, fewest_packs, gather, next_fit, padded_tokens

__all__ = [
    "Packing",
    "best_fit_decreasing",
    "cut_documents",
    "fewest_packs",
    "first_fit_decreasing",
    "gather",
    "next_fit",
    "padded_tokens",
]
