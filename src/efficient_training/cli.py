"""The command line: `execute | render | serve | status | check | tiers | editions | profile | presets | launch`.

Whatever the user can mend is one line on stderr (from `render`, one for each fault) and exit code 2. This module
imports neither torch nor papermill.
"""

import shutil
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from . import launching, profiling, project
from .console import make_console, make_table
from .errors import UserError, UserErrors

app = typer.Typer(
    help=f"{(__package__ or '').replace('_', ' ').title()}: run, render and check the book.",
    no_args_is_help=False,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

INTERRUPTED = 130


def main(arguments: list[str] | None = None) -> None:
    """The entry point: runs a command and exits with its code."""
    sys.exit(run(arguments))


def run(arguments: list[str] | None = None) -> int:
    """The exit code of a command: 0, 1 where something did not pass, 2 on bad input, 130 on Ctrl-C."""
    # jsonschema would import it, which takes over a second, for a check of IRIs that nothing here asks for.
    sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]
    try:
        code = app(args=arguments, prog_name=project.PROJECT, standalone_mode=False)
        return code if isinstance(code, int) else 0
    except UserErrors as errors:
        return max(map(_complain, errors.problems))
    except UserError as error:
        return _complain(str(error))
    except BrokenPipeError:
        return 0  # whoever read the output has seen enough
    except OSError as error:
        # Writing to a full disk does not say of which file; the folder at least is known.
        return _complain(f"{error.filename or Path.cwd()}: {error.strerror or error}; mend that, then go on")
    except typer.Exit as error:
        return error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        # A usage error. Typer brings its own copy of click, or uses the installed one: both have format_message.
        if not hasattr(error, "format_message"):
            raise
        command = getattr(getattr(error, "ctx", None), "command_path", project.PROJECT)
        message = " ".join(str(error.format_message()).split()).rstrip(".")
        return _complain(f"{message}; see `{command} --help`")


def _complain(message: str) -> int:
    print(f"error: {message}", file=sys.stderr)
    return 2


Notebook = Annotated[
    list[str] | None,
    typer.Option("--notebook", "-n", help="Only this notebook: number, slug or name; may be given several times."),
]


@app.command()
def execute(
    notebook: Notebook = None,
    tier: Annotated[
        str | None, typer.Option(help="Tier to run at; the best that this machine meets by default.")
    ] = None,
    edition: Annotated[str | None, typer.Option(help="Name of the edition; host and tier by default.")] = None,
    reference: Annotated[
        bool, typer.Option("--reference", help="Rewrite the outputs in notebooks/, in place.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Execute fresh notebooks too.")] = False,
) -> int:
    """Execute notebooks on this machine, into results/<edition>/."""
    root = project.find_root(Path.cwd())
    if reference and (tier or edition):
        raise UserError("--reference takes neither --tier nor --edition: it runs the notebooks' own defaults in place")
    if edition == project.REFERENCE:
        raise UserError(
            f"--edition {edition}: this name is the committed edition's; choose another, or use --reference"
        )
    if edition is not None:
        project.check_edition_name(edition)
    try:
        from . import execute as runner
    except ModuleNotFoundError as error:
        if str(error.name).startswith(str(__package__)):
            raise
        raise UserError(
            f"this environment has no {error.name}, which execution needs; "
            "use `make run`, or `pip install '.[run]'` in your clone"
        ) from None
    from .machine import detect
    from .tiers import choose, load_tiers

    # A scheduler's end of the job is to leave as orderly as Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    chosen = None if reference else choose(load_tiers(root), detect(), tier)
    name = project.REFERENCE if chosen is None else edition or project.default_edition_name(chosen.name)
    console = make_console()
    outcome = runner.execute(root, edition=name, tier=chosen, wanted=notebook or (), force=force, console=console)
    where = project.edition_folder(root, name).relative_to(root).as_posix()
    if outcome.interrupted:
        print(f"interrupted in {outcome.interrupted}; the same command goes on from there", file=sys.stderr)
        return INTERRUPTED
    line = f"edition {name} in {where}/: {len(outcome.done)} done, {len(outcome.skipped)} fresh"
    line += f", {len(outcome.failed)} failed ({', '.join(outcome.failed)})" if outcome.failed else ""
    console.print(f"{line}; log: results/{name}/run.log", soft_wrap=True)
    return 1 if outcome.failed else 0


@app.command()
def status(
    edition: Annotated[str, typer.Option(help="Name of the edition.")] = project.REFERENCE,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 unless every notebook is fresh.")] = False,
) -> int:
    """List which notebooks of an edition are fresh, stale or missing."""
    from .status import status as look

    found = look(project.find_root(Path.cwd()), edition)
    width = max(map(len, found), default=0)
    for name, item in found.items():
        print(f"{name:{width}}  {item.state}{f': {item.reason}' if item.reason else ''}")
    return 1 if strict and any(item.state != "fresh" for item in found.values()) else 0


@app.command()
def tiers() -> None:
    """Show what this machine has, which tiers it meets, and why not the others."""
    from .machine import GIB, detect
    from .tiers import CLUSTER, DETECTED, load_tiers

    found, machine = load_tiers(project.find_root(Path.cwd())), detect()
    memory = "unknown" if machine.memory_bytes is None else f"{machine.memory_bytes / GIB:.1f} GiB"
    print(f"system  {machine.system}")
    print(f"cpu     {machine.cpu}, {machine.cores} cores, {memory} memory")
    for gpu in machine.gpus:
        kind = "ROCm" if machine.rocm else f"compute capability {gpu.capability}"
        print(f"gpu     {gpu.name}, {gpu.memory_bytes / GIB:.1f} GiB, {kind}")
    if not machine.gpus:
        print("gpu     none")
    for note in machine.notes:
        print(f"note    {note}")
    table = make_table("tier", "for", "here", "missing")
    met = {name: not tier.missing_hardware(machine) for name, tier in found.items()}
    missing = {name: tier.missing(machine) for name, tier in found.items()}
    for name, tier in found.items():
        table.add_row(name, tier.title, "yes" if met[name] else "no", "; ".join(missing[name]))
    make_console().print(table)
    best = next((name for name in DETECTED if met.get(name)), None)
    if best is None:
        print("`make run` cannot run here: no tier is met")
    elif machine.rocm and best != "cpu":
        print(
            f"`make run TIER={best} TORCH_INDEX=...` (PyTorch's index of ROCm builds) runs at tier {best}; never tried"
        )
    elif missing[best]:
        print(f"`make run` installs what is missing and runs at tier {best} here")
    else:
        print(f"`make run` runs at tier {best} here")
    command = f"`{project.PROJECT} execute --tier {CLUSTER}`"
    if len(machine.gpus) > 1:
        print(f"several GPUs are here: {command} runs on all of them (launcher: torchrun)")
    if shutil.which("sbatch"):
        print(f"SLURM is here: set `launcher: slurm` in environments/{CLUSTER}/tier.yml, then {command}")


@app.command()
def editions() -> None:
    """List the editions: machine, tier, date, notebooks done, claims held."""
    from .editions import edition_names, load_edition

    root = project.find_root(Path.cwd())
    total = len(project.notebooks(root))
    table = make_table("edition", "machine", "tier", "date", "notebooks", "claims held", "not held", "not run")
    faults = []
    for name in edition_names(root):
        try:
            edition = load_edition(root, name)
        except UserError as error:
            faults.append(str(error))
            table.add_row(name, "not valid, see below")
            continue
        runs = [result.provenance for result in edition.notebooks.values() if result.provenance]
        machines = [", ".join(gpu["name"] for gpu in run["machine"]["gpus"]) or run["machine"]["cpu"] for run in runs]
        held = [claim.held for claim in edition.claims.values()]
        table.add_row(
            name,
            "; ".join(dict.fromkeys(machines)),
            ", ".join(dict.fromkeys(run["tier"] for run in runs)),
            max((run["date"] for run in runs), default=""),
            f"{len(runs)} of {total}",
            *(str(held.count(verdict)) for verdict in (True, False, None)),
        )
    make_console().print(table)
    for fault in faults:
        print(fault)


app.command("profile")(profiling.profile_step)
app.command("presets")(profiling.list_presets)
app.command("launch", context_settings=launching.CONTEXT)(launching.launch_script)


Edition = Annotated[str, typer.Option(help="Name of the edition.")]
Renderer = Annotated[str, typer.Option(help="auto, quarto or preview.")]


@app.command()
def render(edition: Edition = project.REFERENCE, renderer: Renderer = "auto") -> None:
    """Render an edition of the book; prints the path of its first page."""
    print(_render(edition, renderer))


@app.command()
def serve(
    edition: Edition = project.REFERENCE,
    renderer: Renderer = "auto",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on this machine; 0 picks a free one.")] = 8765,
    open_browser: Annotated[bool, typer.Option("--open/--no-open", help="Open the browser.")] = True,
) -> None:
    """Render an edition of the book and serve it to this machine's browser."""
    from .book.serve import check_port
    from .book.serve import serve as serve_folder

    check_port(port)
    serve_folder(_render(edition, renderer).parent, port, open_browser)


def _render(edition: str, renderer: str) -> Path:
    from .book.render import render as render_book

    if renderer not in ("auto", "quarto", "preview"):
        raise UserError(f"--renderer {renderer}: no such renderer; known: auto, quarto, preview")
    root = project.find_root(Path.cwd())
    project.check_edition_name(edition)
    return render_book(root, edition, renderer)  # type: ignore[arg-type]


@app.command()
def check(edition: Edition = project.REFERENCE) -> int:
    """Check the book: bindings, quantities typed by hand, references, embeds, and that the reference is not stale."""
    from .book.check import survey

    found = survey(project.find_root(Path.cwd()), edition)
    for problem in found.problems:
        print(problem)
    for page, counts in found.counts.items():
        print(f"{page}: {counts}")
    print(f"{len(found.problems)} problems" if found.problems else "no problem found")
    return 1 if found.problems else 0
