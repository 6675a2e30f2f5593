"""The command line: `efficient-training execute | render | serve | status | check | tiers | editions`.

Whatever the user can mend is one line on stderr and exit code 2. This module imports neither torch nor papermill.
"""

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from . import project
from .errors import UserError

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
    try:
        code = app(args=arguments, prog_name=project.PROJECT, standalone_mode=False)
        return code if isinstance(code, int) else 0
    except UserError as error:
        return _complain(str(error))
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
    print(f"error: {' '.join(message.splitlines())}", file=sys.stderr)
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
        raise UserError(
            f"this environment has no {error.name}, which execution needs; "
            "use `make run`, or `pip install 'efficient-training[run]'`"
        ) from None
    from .machine import detect
    from .tiers import choose, load_tiers

    chosen = None if reference else choose(load_tiers(root), detect(), tier)
    name = project.REFERENCE if chosen is None else edition or project.default_edition_name(chosen.name)
    console = Console()
    outcome = runner.execute(root, edition=name, tier=chosen, wanted=notebook or (), force=force, console=console)
    where = project.edition_folder(root, name).relative_to(root).as_posix()
    line = f"edition {name} in {where}/: {len(outcome.done)} done, {len(outcome.skipped)} fresh"
    line += f", {len(outcome.failed)} failed ({', '.join(outcome.failed)})" if outcome.failed else ""
    console.print(f"{line}; log: results/{name}/run.log", markup=False, highlight=False, soft_wrap=True)
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
