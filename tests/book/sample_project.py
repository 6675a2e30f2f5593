"""A small book project on disk for the tests of the book: notebooks made by hand, with real records and claims."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from efficient_training.claims import Claim
from efficient_training.display import METADATA_KEY
from efficient_training.records import Record

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="  # one pixel

PROVENANCE: dict[str, Any] = {
    "edition": "reference",
    "tier": "cpu",
    "source": "0" * 64,
    "parameters": {},
    "commit": "abcdef1234" + "0" * 30,
    "dirty": False,
    "date": "2026-11-29",
    "seconds": 1.5,
    "machine": {"system": "Linux 6.1", "cpu": "Xeon", "cores": 2, "memory_bytes": 2**34, "gpus": []},
    "versions": {"torch": "2.13.0", "python": "3.11.9"},
}


def shown(item: Record | Claim) -> dict[str, Any]:
    """The output of a cell that makes a record or a claim."""
    return {
        "output_type": "display_data",
        "data": {"text/plain": item.text},
        "metadata": {METADATA_KEY: item.to_json()},
    }


def figure() -> dict[str, Any]:
    """The output of a cell that shows a figure."""
    return {
        "output_type": "display_data",
        "data": {"image/png": PNG, "text/plain": "<Figure size 640x480 with 1 Axes>"},
        "metadata": {},
    }


def table(markdown: str) -> dict[str, Any]:
    """The output of a cell that shows a table."""
    return {
        "output_type": "display_data",
        "data": {"text/markdown": markdown, "text/plain": markdown},
        "metadata": {},
    }


def code(source: str, outputs: Sequence[Mapping[str, Any]] = (), *, tags: Sequence[str] = ()) -> dict[str, Any]:
    """A code cell; its id is given by `notebook`."""
    metadata = {"tags": list(tags)} if tags else {}
    return {
        "cell_type": "code",
        "metadata": metadata,
        "source": source,
        "outputs": [dict(output) for output in outputs],
        "execution_count": None,
    }


def notebook(cells: Sequence[Mapping[str, Any]], provenance: Mapping[str, Any] | None = PROVENANCE) -> dict[str, Any]:
    """A notebook of these cells after a title and a parameters cell."""
    first = [
        {"cell_type": "markdown", "metadata": {}, "source": "# Title"},
        code("STEPS = 4  # steps", tags=["parameters"]),
    ]
    metadata: dict[str, Any] = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    if provenance is not None:
        metadata[METADATA_KEY] = dict(provenance)
    numbered = [{**cell, "id": f"cell-{number}"} for number, cell in enumerate([*first, *cells])]
    return {"nbformat": 4, "nbformat_minor": 5, "metadata": metadata, "cells": numbered}


def write_notebook(
    path: Path, cells: Sequence[Mapping[str, Any]], provenance: Mapping[str, Any] | None = PROVENANCE
) -> None:
    """Write such a notebook to `path`, making its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(notebook(cells, provenance), indent=1), encoding="utf-8")
