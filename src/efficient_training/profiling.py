"""The commands `profile`, the ledger of a user's own model and recipe in one of three views, and `presets`."""

import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from . import ledger_output
from .console import make_console, make_table
from .errors import UserError
from .host_memory import available_bytes
from .ledger import VIEWS, Ledger, View
from .models import load_shape, presets
from .recipe import Recipe, accumulation_steps
from .recipe_file import read_recipe
from .workload import Workload

if TYPE_CHECKING:
    from .trace import Timeline

FIGURE_FORMATS = (".png", ".svg")
TOKEN_BYTES = 8
"""A token's id, an int64: a real step has those of all of its micro-batches from the start."""


def profile_step(
    model: Annotated[
        str,
        typer.Option(help="A preset (`presets` lists them), or a Hugging Face config.json (the file or its folder)."),
    ],
    seq: Annotated[int, typer.Option(help="Sequence length in tokens.")],
    micro_batch: Annotated[int | None, typer.Option(help="Sequences in a micro-batch; the recipe's, else 1.")] = None,
    accumulation: Annotated[int, typer.Option(help="Micro-batches of one optimizer step.")] = 1,
    recipe: Annotated[Path | None, typer.Option(help="A recipe in YAML.")] = None,
    setting: Annotated[
        list[str] | None, typer.Option("--set", help="A field of the recipe, as field=value; several times.")
    ] = None,
    view: Annotated[str, typer.Option(help="priced (closed form), traced (no GPU), run (on this CPU).")] = "traced",
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the ledger to this file.")] = None,
    figure: Annotated[
        Path | None, typer.Option(help="Draw the step over time, to a .png or .svg; not for view priced.")
    ] = None,
) -> None:
    """Show where the memory of a training step goes: bytes by phase and component."""
    chosen = view_of(view)
    made = read_recipe(recipe, setting or (), micro_batch)
    workload = workload_of(model, seq, made.micro_batch, accumulation, made.ranks)
    check_outputs(chosen, made, json_file, figure)
    ledger, timeline = profile(workload, made, chosen, whole=figure is not None)
    title = ledger_output.title(workload, made, chosen)
    ledger_output.show(make_console(), title, ledger)
    if json_file is not None:
        ledger_output.write_json(json_file, workload, made, ledger)
    if figure is not None and timeline is not None:
        ledger_output.write_figure(figure, timeline, title)


def list_presets() -> None:
    """List the models that `profile --model` knows by name."""
    table = make_table("preset", "family", "layers", "hidden", "parameters")
    for name, shape in presets().items():
        table.add_row(name, shape.family, str(shape.layers), str(shape.hidden), f"{shape.parameters:,}")
    make_console().print(table)


def view_of(name: str) -> View:
    """The view of this name; raises `UserError` on an unknown one."""
    found = next((one for one in VIEWS if one == name), None)
    if found is None:
        raise UserError(f"--view {name}: no such view; known: {', '.join(VIEWS)}")
    return found


def check_outputs(view: View, recipe: Recipe, json_file: Path | None, figure: Path | None) -> None:
    """Raise `UserError` where a file that is asked for cannot be made, before there is any work in it."""
    if figure is not None:
        if figure.suffix not in FIGURE_FORMATS:
            raise UserError(f"--figure {figure}: the name must end in {' or '.join(FIGURE_FORMATS)}")
        if view == "priced":
            raise UserError("--figure needs --view traced or run: a priced ledger knows nothing between the peaks")
        if view == "run" and recipe.ranks > 1:
            raise UserError(
                "--figure with --view run needs one rank: several report their peaks only; use --view traced"
            )
        if importlib.util.find_spec("matplotlib") is None:
            raise UserError("--figure: this environment has no matplotlib; install it, or leave the figure out")
        if figure == json_file:
            raise UserError(f"--json and --figure are both {figure}; give each a file of its own")
        ledger_output.check_target("--figure", figure)
    if json_file is not None:
        ledger_output.check_target("--json", json_file)


def workload_of(model: str, sequence_length: int, micro_batch: int, accumulation: int, ranks: int = 1) -> Workload:
    """The workload of `ranks` that each accumulate `accumulation` micro-batches a step.

    Raises `UserError` on a model that is not known, or a size that is not above zero or beyond counting.
    """
    if sequence_length < 1 or accumulation < 1:
        raise UserError(f"--seq and --accumulation must be above zero, got {sequence_length} and {accumulation}")
    return Workload(load_shape(model), sequence_length, sequence_length * micro_batch * accumulation * ranks)


def profile(workload: Workload, recipe: Recipe, view: View, whole: bool = True) -> tuple[Ledger, "Timeline | None"]:
    """The ledger in the given view, and the timeline that it was read from; a priced one has none.

    Unless it is to be the `whole` step, a traced timeline has those of a deep model's instants among which the peaks
    are, in far less time.
    Priced and traced ledgers are those of a CUDA device; a run one is that of this machine's CPU, on real tensors with
    random weights, and with several ranks that of the first of as many processes, without a timeline.
    Raises `UserError` for a compiled model, where this environment has no torch, or where a real run would not fit into
    this machine.
    """
    if recipe.compile:
        raise UserError(
            "profile: no view shows a compiled model: its fused kernels are no operators to trace or price, and take "
            "memory that a run does not see by component; set compile: false"
        )
    if view == "priced":
        from .price import price

        return price(workload, recipe), None
    accumulation_steps(workload, recipe)  # before torch is loaded, which takes its time
    try:
        from .measured import run_timeline
        from .trace import deep_timeline, ledger_of, trace, trace_timeline
    except ModuleNotFoundError as error:
        raise UserError(f"this environment has no {error.name}, which --view {view} needs; use --view priced") from None
    if view == "traced":
        timeline = (
            trace_timeline(workload.model, workload, recipe, "cuda") if whole else deep_timeline(workload, recipe)
        )
        return _noted(ledger_of(timeline, "traced"), workload, recipe), timeline
    expected = trace(workload, recipe, "cpu")
    _check_fits((expected.peak() + expected.peak("host")) * recipe.ranks + TOKEN_BYTES * workload.tokens_per_step)
    if recipe.ranks > 1:
        from .measured_ranks import ledgers_on_ranks

        return ledgers_on_ranks([(workload, recipe)], timeout_s=None, progress=True)[0][0], None
    timeline = run_timeline(workload, recipe)
    return _noted(ledger_of(timeline, "run"), workload, recipe), timeline


def _noted(ledger: Ledger, workload: Workload, recipe: Recipe) -> Ledger:
    """With what the price of the recipe says of it, which holds in each view."""
    from .price import notes, words_of

    return replace(ledger, notes=tuple(notes(words_of(workload.model, recipe, False))))


def _check_fits(needed: int) -> None:
    available = available_bytes()
    if available is not None and needed > available:
        raise UserError(
            f"--view run needs {needed / 2**30:.1f} GiB of memory at its peak, and {available / 2**30:.1f} GiB are "
            "free here; use --view traced, or a smaller --seq or --micro-batch"
        )
