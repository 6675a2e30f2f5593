"""Rendering the book: with Quarto where there is one, with the preview where there is none."""

import sys
from pathlib import Path
from typing import Literal

from ..errors import UserError
from .assemble import assemble
from .preview import render_preview
from .quarto import find_quarto, render_quarto

Renderer = Literal["auto", "quarto", "preview"]


def render(root: Path, edition: str = "reference", renderer: Renderer = "auto") -> Path:
    """Render `edition` of the book project at `root`; returns its index.html.

    The reference edition is rendered to `_book/`, any other to `_build/<edition>/_book/`. `auto` takes Quarto where
    one is to be had, and otherwise says on stderr that this is the preview, and why. Raises `UserError` where the
    edition or its sources are at fault (a line for each problem), and where Quarto was asked for and there is none.
    """
    quarto, found = (None, "") if renderer == "preview" else find_quarto()
    if renderer == "quarto" and quarto is None:
        raise UserError(f"{found}; install Quarto, or render the preview with --renderer preview")
    project = assemble(root, edition)
    if quarto is not None:
        return render_quarto(quarto, project)
    if renderer == "auto":
        print(f"rendering the preview with pandoc: {found}", file=sys.stderr)
    return render_preview(project, project / "_book")
