"""The Makefile's own part: which tier there is, and that what a user names reaches the command line as written."""

import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from efficient_training import cli

ROOT = Path(__file__).parent.parent
INHERITED = {"MAKEFLAGS", "MAKEOVERRIDES", "MAKELEVEL", "TIER", "EDITION", "NOTEBOOK", "PORT"}

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="no make here")


def make(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """What make would run (-n), or says, apart from the make that may be running these tests."""
    env = {name: value for name, value in os.environ.items() if name not in INHERITED}
    return subprocess.run(["make", "-n", *arguments], cwd=ROOT, env=env, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("tier", ["bogus", "", "../cpu", "cpu gpu", "book", "%"])
def test_an_unknown_tier_is_one_line(tier: str) -> None:
    run = make("run", f"TIER={tier}")
    assert run.returncode == 2
    assert f"TIER={tier}: no such tier; known: cluster cpu gpu hopper" in run.stderr
    assert run.stderr.count("\n") == 1


@pytest.mark.parametrize("target", ["book", "serve", "status", "run"])
@pytest.mark.parametrize("name", ["mine", "a b", "a'b", 'a"b', "`id`", "a;b"])
def test_a_name_is_passed_on_as_it_was_written(target: str, name: str) -> None:
    command = shlex.split(make(target, f"EDITION={name}").stdout.splitlines()[-1])
    assert command[command.index("--edition") + 1] == name


def test_several_notebooks_and_a_port_are_passed_on() -> None:
    command = shlex.split(make("run", "NOTEBOOK=1 'x").stdout.splitlines()[-1])
    assert [word for at, word in enumerate(command) if command[at - 1] == "--notebook"] == ["1", "'x"]
    assert "--edition" not in command
    assert shlex.split(make("serve", "PORT=").stdout.splitlines()[-1])[-2:] == ["--port", ""]


def test_serve_renders_once() -> None:
    assert " render" not in make("serve").stdout


def test_an_environment_can_be_made_alone() -> None:
    run = make("env", "TIER=cpu")
    assert run.returncode == 0
    assert "execute" not in run.stdout


def test_serve_has_one_port(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["serve", "--help"]) == 0
    assert "8765" in capsys.readouterr().out
    assert shlex.split(make("serve").stdout.splitlines()[-1])[-2:] == ["--port", "8765"]
