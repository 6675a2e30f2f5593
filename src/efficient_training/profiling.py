"""The ledger of a user's own model and recipe in one of three views, as a table, as JSON, and as a figure over time."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import yaml
from rich.console import Console
from rich.table import Table

from .errors import UserError
from .fields import from_mapping, to_mapping
from .ledger import COMPONENTS, PHASES, PLACES, VIEWS, Ledger, Place, View
from .models import load_shape
from .recipe import Recipe, accumulation_steps
from .workload import Workload

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from .trace import Timeline

MIB = 2**20
FIGURE_FORMATS = (".png", ".svg")


def check(view: str, figure: Path | None) -> View:
    """The view of this name; raises `UserError` on an unknown one, and on a figure that cannot be drawn."""
    found = next((one for one in VIEWS if one == view), None)
    if found is None:
        raise UserError(f"--view {view}: no such view; known: {', '.join(VIEWS)}")
    if figure is not None and figure.suffix not in FIGURE_FORMATS:
        raise UserError(f"--figure {figure}: the name must end in {' or '.join(FIGURE_FORMATS)}")
    if figure is not None and view == "priced":
        raise UserError("--figure needs --view traced or run: a priced ledger knows nothing between the peaks")
    return found


def read_recipe(path: Path | None, settings: Sequence[str], micro_batch: int | None) -> Recipe:
    """The recipe of a YAML file, with `settings` ("field=value") and the micro-batch size over it.

    Raises `UserError` naming the file or the setting, and the field.
    """
    data: object = {}
    if path is not None:
        try:
            data = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
        except OSError as error:
            raise UserError(f"{path}: cannot be read ({error.strerror})") from None
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise UserError(f"{path}: not YAML ({' '.join(str(error).split())})") from None
    if not isinstance(data, dict):
        raise UserError(f"{path}: a recipe must be a mapping of fields, got {type(data).__name__}")
    fields = dict(data)
    for setting in settings:
        name, separator, value = setting.partition("=")
        if not separator:
            raise UserError(f"--set {setting}: write it as field=value, like precision=bf16-autocast")
        try:
            fields[name.strip()] = yaml.safe_load(value)
        except yaml.YAMLError:
            raise UserError(f"--set {setting}: {value!r} is not YAML; write a word, a number, true or false") from None
    if micro_batch is not None:
        fields["micro_batch"] = micro_batch
    fields.setdefault("micro_batch", 1)
    return from_mapping(Recipe, fields, str(path) if path else "--set")


def workload_of(model: str, sequence_length: int, micro_batch: int, accumulation: int, ranks: int = 1) -> Workload:
    """The workload of `ranks` that each accumulate `accumulation` micro-batches a step.

    Raises `UserError` on a model that is not known, or a size that is not above zero.
    """
    if sequence_length < 1 or accumulation < 1:
        raise UserError(f"--seq and --accumulation must be above zero, got {sequence_length} and {accumulation}")
    return Workload(load_shape(model), sequence_length, sequence_length * micro_batch * accumulation * ranks)


def profile(workload: Workload, recipe: Recipe, view: View) -> tuple[Ledger, "Timeline | None"]:
    """The ledger in the given view, and the timeline that it was read from; a priced one has none.

    Priced and traced ledgers are those of a CUDA device; a run one is that of this machine's CPU, on real tensors with
    random weights, and with several ranks that of the first of as many processes, without a timeline.
    Raises `UserError` where this environment has no torch, or where a real run would not fit into this machine.
    """
    if view == "priced":
        from .price import price

        return price(workload, recipe), None
    try:
        from .measured import run_timeline
        from .trace import ledger_of, trace, trace_timeline
    except ModuleNotFoundError as error:
        raise UserError(f"this environment has no {error.name}, which --view {view} needs; use --view priced") from None
    accumulation_steps(workload, recipe)
    if view == "traced":
        timeline = trace_timeline(workload.model, workload, recipe, "cuda")
        return ledger_of(timeline, "traced"), timeline
    expected = trace(workload, recipe, "cpu")
    _check_fits((expected.peak() + expected.peak("host")) * recipe.ranks)
    if recipe.ranks > 1:
        from .measured_ranks import ledgers_on_ranks

        return ledgers_on_ranks([(workload, recipe)], timeout_s=None, progress=True)[0][0], None
    timeline = run_timeline(workload, recipe)
    return ledger_of(timeline, "run"), timeline


def _check_fits(needed: int) -> None:
    available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > available:
        raise UserError(
            f"--view run needs {needed / 2**30:.1f} GiB of memory at its peak, and {available / 2**30:.1f} GiB are "
            "free here; use --view traced, or a smaller --seq or --micro-batch"
        )


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


def write_json(path: Path, workload: Workload, recipe: Recipe, ledger: Ledger) -> None:
    """Write what was profiled and its ledger, in one step."""
    data = {"workload": to_mapping(workload), "recipe": to_mapping(recipe), "ledger": ledger.to_json()}
    _write(path, json.dumps(data, indent=1).encode() + b"\n")


def write_figure(path: Path, timeline: "Timeline", title: str) -> None:
    """Write the timeline as PNG or SVG, by the file's ending, in one step; raises `UserError` on another ending."""
    if path.suffix not in FIGURE_FORMATS:
        raise UserError(f"--figure {path}: the name must end in {' or '.join(FIGURE_FORMATS)}")
    import io

    buffer = io.BytesIO()
    timeline_figure(timeline, title).savefig(buffer, format=path.suffix[1:])
    _write(path, buffer.getvalue())


def _write(path: Path, data: bytes) -> None:
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.write_bytes(data)
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise UserError(f"{path}: cannot be written ({error.strerror})") from None


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
