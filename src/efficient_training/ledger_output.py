"""A ledger as a table, as JSON, and as a figure over time; files are written in one step, and asked for beforehand."""

import contextlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from .errors import UserError
from .fields import to_mapping
from .ledger import COMPONENTS, PHASES, PLACES, Ledger, Place, View
from .recipe import Recipe
from .workload import Workload

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from .trace import Timeline

MIB = 2**20


def rows(ledger: Ledger, place: Place = "device") -> list[list[str]]:
    """Rows for a table of one place: a component, then MiB at each phase's peak; the last row is their sum."""
    phases = ledger.entries.get(place, {})
    used = [name for name in COMPONENTS if any(phases.get(phase, {}).get(name) for phase in PHASES)]
    table = [[name, *(_mib(phases.get(phase, {}).get(name, 0)) for phase in PHASES)] for name in used]
    return [*table, ["peak of the phase", *(_mib(ledger.phase_peak(phase, place)) for phase in PHASES)]]


def places(ledger: Ledger) -> list[Place]:
    """The places that hold something, the device first and always."""
    return [place for place in PLACES if place == "device" or ledger.peak(place)]


def title(workload: Workload, recipe: Recipe, view: View) -> str:
    """What was profiled, in a line."""
    shared = "" if recipe.ranks == 1 else f", one of {recipe.ranks} ranks ({recipe.sharding})"
    size = f"{recipe.micro_batch} x {workload.sequence_length} tokens"
    return f"{workload.model.name}, {size}, {recipe.precision}{shared}, {view}"


def show(console: Console, title: str, ledger: Ledger) -> None:
    """Print a table for each place, the peak of the device, and what else is to be said of the ledger."""
    console.print(title)
    for place in places(ledger):
        table = Table(box=None, header_style="bold", pad_edge=False)
        for number, name in enumerate(("MiB" if place == "device" else f"MiB, {place}", *PHASES)):
            table.add_column(name, justify="right" if number else "left")
        for row in rows(ledger, place):
            table.add_row(*row)
        console.print(table)
    console.print(f"peak: {ledger.peak() / 2**30:.2f} GiB, in the {ledger.peak_phase()} phase")
    for note in ledger.notes:
        console.print(f"note: {note}")


def _mib(size: int) -> str:
    return f"{size / MIB:,.1f}"


def check_target(option: str, path: Path) -> None:
    """Raise `UserError` where `path`, the value of `option`, cannot be written; leaves nothing behind."""
    with _saying(f"{option} {path}"):
        if path.is_dir():
            raise UserError(f"{option} {path}: is a folder; give the name of a file")
        if not _is_special(path):
            with _part(path) as part:
                part.touch()


def write_json(path: Path, workload: Workload, recipe: Recipe, ledger: Ledger) -> None:
    """Write what was profiled and its ledger, in one step."""
    data = {"workload": to_mapping(workload), "recipe": to_mapping(recipe), "ledger": ledger.to_json()}
    _write(path, json.dumps(data, indent=1).encode() + b"\n")


def write_figure(path: Path, timeline: "Timeline", title: str) -> None:
    """Write the timeline as PNG or SVG, by the file's ending, in one step."""
    import io

    buffer = io.BytesIO()
    timeline_figure(timeline, title).savefig(buffer, format=path.suffix[1:])
    _write(path, buffer.getvalue())


def _write(path: Path, data: bytes) -> None:
    with _saying(str(path)):
        if _is_special(path):
            path.write_bytes(data)
            return
        with _part(path) as part:
            part.write_bytes(data)
            part.replace(path.resolve())  # where it is a link, the link stays


def _is_special(path: Path) -> bool:
    """A device or a pipe, which is written to; a file is replaced."""
    return path.exists() and not path.is_file()


@contextmanager
def _part(path: Path) -> Iterator[Path]:
    """A name beside the file that `path` is, for what is to replace it; gone at the end, whatever happens."""
    part = path.resolve().with_name(f".{os.getpid()}.part")
    try:
        yield part
    finally:
        with contextlib.suppress(OSError):
            part.unlink()


@contextmanager
def _saying(where: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(f"{where}: cannot be written ({error.strerror})") from None


CONSTANT = ("weights", "optimizer state", "master weights")
"""What does not change over a step, at the bottom of the figure."""

PHASE_WIDTHS = dict(zip(PHASES, (3.0, 4.0, 2.0), strict=True))
"""Widths of the phases in the figure: a short one would be a line if each operator had the same width everywhere."""


def timeline_figure(timeline: "Timeline", title: str) -> "Figure":
    """Live bytes by component over a step, stacked, phases marked; operators that change nothing are left out."""
    import matplotlib.pyplot as plt

    from .figures import COMPONENT_COLORS, use_style

    use_style()
    figure, axes = plt.subplots(figsize=(7.2, 4.0))
    places: list[float] = []
    stack: list[dict[str, int]] = []
    start = 0.0
    for phase, width in PHASE_WIDTHS.items():
        all_of_phase = [dict(sample.components) for sample in timeline[phase]]
        changes = [now for before, now in zip([{}, *all_of_phase], all_of_phase, strict=False) if now != before]
        places += [start + width * number / len(changes) for number in range(len(changes))]
        stack += changes
        axes.axvline(start, color="#444444", linewidth=0.8)
        above = axes.get_xaxis_transform()
        axes.text(start + width / 2, 1.0, phase, transform=above, ha="center", va="bottom", fontsize=9)
        start += width
    order = [*CONSTANT, *(name for name in COMPONENTS if name not in CONSTANT)]
    used = [name for name in order if any(components.get(name) for components in stack)]
    heights = [[components.get(name, 0) / 2**30 for components in [*stack, stack[-1]]] for name in used]
    colors = [COMPONENT_COLORS[name] for name in used]
    axes.stackplot([*places, start], heights, colors=colors, labels=used, step="post", linewidth=0)
    totals = [sum(components.values()) for components in stack]
    peak = max(totals)
    where = places[totals.index(peak)]
    axes.plot(where, peak / 2**30, "o", color="black", markersize=5)
    axes.annotate(f"{peak / 2**30:.2f} GiB", (where, peak / 2**30), (6, 2), textcoords="offset points", fontsize=10)
    axes.set(xlim=(0, start), xticks=[], xlabel="operators that allocate or free, in their order", ylabel="live, GiB")
    axes.set_title(title, pad=22)
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), reverse=True)
    axes.grid(visible=False, axis="x")
    return figure
