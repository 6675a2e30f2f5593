"""The preview: the same book project as Quarto renders, rendered with pandoc, offline.

It reads a frozen subset of Quarto's syntax (`chapters/README.md` lists it) and says so where a page leaves it.
"""

from .build import render_preview

__all__ = ["render_preview"]
