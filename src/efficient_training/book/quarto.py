"""Real Quarto, where there is one: finding it and running it."""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from ..errors import UserError, UserErrors

MINIMUM = (1, 7)
AS_TEXT: dict[str, Any] = {"capture_output": True, "encoding": "utf-8", "errors": "replace"}
TROUBLE = re.compile(r"(?:\[?(?:WARN(?:ING)?|ERROR)\]?:?\s*)+")
FATAL_WARNINGS = ("Unable to resolve crossref", "citation", "Could not fetch resource", "Unable to resolve link")


def find_quarto() -> tuple[Path | None, str]:
    """A usable Quarto, on the PATH or in this environment, or `None`; and, in words, what was found."""
    beside = Path(sys.executable).parent
    found = shutil.which("quarto") or shutil.which("quarto", path=str(beside))
    if found is None:
        return None, "no quarto on the PATH or in this environment"
    wanted = ".".join(map(str, MINIMUM))
    try:
        done = subprocess.run([found, "--version"], timeout=60, check=False, **AS_TEXT)
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, f"{found} does not run ({error})"
    version = re.match(r"(\d+)\.(\d+)", done.stdout.strip())
    if done.returncode or version is None:
        return None, f"{found} does not tell its version"
    if (int(version[1]), int(version[2])) < MINIMUM:
        return None, f"{found} is version {done.stdout.strip()}, the book needs {wanted} or newer"
    return Path(found), f"Quarto {done.stdout.strip()}"


def render_quarto(quarto: Path, root: Path) -> Path:
    """Render the project at `root`; returns its index.html.

    Raises `UserError` with Quarto's own words where it fails, and where it only warns of a reference, a citation or a
    file that it could not find.
    """
    index = root / "_book" / "index.html"
    before = index.stat().st_mtime_ns if index.exists() else None
    # Never --execute: Quarto would rewrite the notebooks in place.
    done = subprocess.run([str(quarto), "render", str(root), "--to", "html"], check=False, **AS_TEXT)
    messages = [line for line in done.stderr.splitlines() if TROUBLE.match(line)]
    if done.returncode:
        said = messages or done.stderr.split("\n")
        what = next((line for line in reversed(said) if line.strip()), f"exit code {done.returncode}")
        raise UserError(
            f"quarto render failed in {root}: {what.strip()}; `render --renderer preview` does without Quarto"
        )
    fatal = [line for line in messages if any(warning in line for warning in FATAL_WARNINGS)]
    if fatal:
        raise UserErrors(list(dict.fromkeys(f"{root}: {TROUBLE.sub('', line, count=1)}" for line in fatal)))
    if not index.exists() or index.stat().st_mtime_ns == before:
        raise UserError(f"quarto render wrote no {index}; look at project.output-dir in {root / '_quarto.yml'}")
    return index
