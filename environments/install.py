"""Make the virtual environment `.venv/<name>` of one tier, or of the book alone. Standard library only; run by make.

    python environments/install.py NAME [--dev]

The pinned packages of `environments/<name>/requirements.txt` are installed, then the package itself (editable), then,
one by one, the lines of `post.txt`. A line marked `; optional` that cannot be installed is said plainly and left out.
A stamp is written last, so that an interrupted installation goes on where it stopped.
"""

import argparse
import fcntl
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TextIO

# Here, before a line that an older Python cannot run.
if not (3, 11) <= sys.version_info[:2] <= (3, 13):
    found = ".".join(map(str, sys.version_info[:2]))
    sys.stderr.write(
        f"error: Python {found} is not supported; name one from 3.11 to 3.13: `make book PYTHON=python3.12`\n"
    )
    sys.exit(2)

ROOT = Path(__file__).resolve().parent.parent
OPTIONAL_TIMEOUT_S = 200
SETTING = re.compile(r"[A-Z_]+=(?!=)")
"""A variable's setting in post.txt, as against a requirement `name==1.0`."""


def main() -> int:
    """Install what is asked for; returns the exit code."""
    parser = argparse.ArgumentParser(description="make a virtual environment under .venv/")
    parser.add_argument(
        "name", choices=sorted(path.parent.name for path in ROOT.glob("environments/*/requirements.txt"))
    )
    parser.add_argument("--dev", action="store_true", help="add environments/dev: the tests' own packages")
    arguments = parser.parse_args()
    venv, log = ROOT / ".venv" / arguments.name, ROOT / ".venv" / f"{arguments.name}.log"
    started = time.monotonic()
    try:
        venv.parent.mkdir(exist_ok=True)
        with log.open("a", encoding="utf-8") as out:
            wait_for_others(out, arguments.name)
            print(f"environment .venv/{arguments.name}: installing (log: .venv/{log.name})", flush=True)
            install(arguments.name, venv, out, dev=arguments.dev)
    except subprocess.CalledProcessError as error:
        print(f"environment .venv/{arguments.name}: {step_of(error.cmd)} failed; the last lines of its log:")
        print("\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-8:]))
        return 2
    except OSError as error:
        print(f"environment .venv/{arguments.name}: {error.filename or venv}: {error.strerror}; mend it, then go on")
        return 2
    except KeyboardInterrupt:
        print(f"environment .venv/{arguments.name}: interrupted; the same command goes on from there")
        return 130
    print(f"environment .venv/{arguments.name}: ready after {time.monotonic() - started:.0f} s", flush=True)
    return 0


def install(name: str, venv: Path, out: TextIO, *, dev: bool) -> None:
    """Create `venv` where it is missing, and install into it; raises `CalledProcessError`."""
    python = venv / "bin" / "python"
    forget_unfinished(venv)
    if not usable(python):
        run([sys.executable, "-m", "venv", "--clear", str(venv)], out)
    here = ROOT / "environments" / name
    requirements = ["-r", str(here / "requirements.txt")]
    if dev:
        requirements += ["-r", str(ROOT / "environments" / "dev" / "requirements.txt")]
    # A CPU build of torch comes from PyTorch's own index, where one is named: it is asked first, for torch alone.
    index = os.environ.get("TORCH_INDEX")
    if index:
        pins = (here / "requirements.txt").read_text().splitlines()
        torch = next(line.split()[0] for line in pins if line.startswith("torch=="))
        run([str(python), "-m", "pip", "install", "--index-url", index, torch], out)
    run([str(python), "-m", "pip", "install", *requirements], out)
    run([str(python), "-m", "pip", "install", "--no-deps", "-e", str(ROOT)], out)
    post = here / "post.txt"
    for line in post.read_text().splitlines() if post.exists() else ():
        if line and not line.startswith("#"):
            install_last(python, line, out)
    (venv / (".installed-dev" if dev else ".installed")).touch()


def wait_for_others(out: TextIO, name: str) -> None:
    """Hold the log's lock, which goes with this process: two installations into one folder would spoil it."""
    try:
        fcntl.flock(out, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print(f"environment .venv/{name}: waiting for another installation of it", flush=True)
        fcntl.flock(out, fcntl.LOCK_EX)


def usable(python: Path) -> bool:
    """Whether `python` runs and has pip: not where the making of its environment was cut short, or its base is gone."""
    try:
        return subprocess.run([str(python), "-m", "pip", "--version"], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def forget_unfinished(venv: Path) -> None:
    """Remove the mark of each package whose installation was cut short, for which pip would take it for installed.

    RECORD is the last file that pip writes of a package.
    """
    for mark in venv.glob("lib*/python*/site-packages/*.dist-info"):
        if not (mark / "RECORD").exists():
            shutil.rmtree(mark)


def install_last(python: Path, line: str, out: TextIO) -> None:
    """Install one line of post.txt: `[NAME=VALUE ...] REQUIREMENT [options of pip] [; optional: what is left out]`.

    What is optional may fail, or be there already as a program.
    """
    wanted, _, mark = line.partition(" ; ")
    words = shlex.split(wanted)
    settings = dict(word.split("=", 1) for word in words if SETTING.match(word))
    requirement, *options = [word for word in words if not SETTING.match(word)]
    optional, _, without = mark.partition(":")
    program = {"quarto-cli": "quarto"}.get(requirement.split(">=")[0].split("==")[0])
    if program and shutil.which(program):
        print(f"  {program} found at {shutil.which(program)}: {requirement} not installed", flush=True)
        return
    command = [str(python), "-m", "pip", "install", *options, requirement]
    try:
        run(command, out, timeout=OPTIONAL_TIMEOUT_S if optional.strip() == "optional" else None, settings=settings)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
        if optional.strip() != "optional":
            raise
        print(f"  {requirement} could not be installed here; {without.strip()}", flush=True)


def run(command: list[str], out: TextIO, timeout: float | None = None, settings: dict[str, str] | None = None) -> None:
    """Run `command` with its output in the log, and `settings` added to its environment."""
    environment = {**os.environ, **(settings or {})}
    subprocess.run(command, stdout=out, stderr=subprocess.STDOUT, check=True, timeout=timeout, env=environment)


def step_of(command: list[str]) -> str:
    """The command as a user would write it."""
    return " ".join(Path(part).name if part.startswith("/") else part for part in command[1:])


if __name__ == "__main__":
    sys.exit(main())
