"""A small project in a temporary folder, with notebooks that can be executed and editions that can be spoiled."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
import pytest
from hypothesis import settings

from efficient_training import cli, provenance
from efficient_training import notebook as nb
from efficient_training.display import METADATA_KEY

# In a background job of a shell Ctrl-C is ignored, and would be by all processes that the tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples on each run, and no limit on the time of one: the machines that run this are shared.
settings.register_profile("book", deadline=None, derandomize=True)
settings.load_profile("book")

CPU = "name: cpu\ntitle: Any CPU\nrequires:\n  device: cpu\n"
MACHINE = {"system": "Linux x86_64", "cpu": "A CPU", "cores": 2, "memory_bytes": 2**34, "gpus": []}
COMMAND = [sys.executable, "-c", "from efficient_training.cli import main; main()"]


@dataclass
class Project:
    """A project's root and what a test does with it."""

    root: Path

    def notebook(self, name: str, cells: Sequence[str], parameters: str = "steps = 3  # count") -> Path:
        """Write notebooks/<name>.ipynb: a title, the parameters cell, and code cells whose ids are c1, c2..."""
        made = nbformat.v4.new_notebook()
        made.cells = [nbformat.v4.new_markdown_cell(f"# {name}", id="title")]
        made.cells += [nbformat.v4.new_code_cell(parameters, id="parameters", metadata={"tags": ["parameters"]})]
        made.cells += [nbformat.v4.new_code_cell(source, id=f"c{i}") for i, source in enumerate(cells, 1)]
        nb.clean(made)
        path = self.root / "notebooks" / f"{name}.ipynb"
        nb.write(made, path)
        return path

    def tier(self, name: str, text: str) -> Path:
        """Write environments/<name>/tier.yml."""
        path = self.root / "environments" / name / "tier.yml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def edition(
        self, edition: str, name: str, outputs: Mapping[str, Sequence[Mapping[str, Any]]], /, **fields: Any
    ) -> Path:
        """Write an executed copy of a notebook, as the runner would: outputs by cell id, and provenance."""
        made = nb.read(self.root / "notebooks" / f"{name}.ipynb")
        for cell in made.cells:
            if cell.id in outputs:
                cell.outputs = [nbformat.from_dict(output) for output in outputs[cell.id]]
        own = {
            **{"edition": edition, "tier": "cpu", "source": provenance.source_hash(made), "parameters": {}},
            **{"commit": None, "dirty": False, "date": "2026-01-31", "seconds": 1.0},
            **{"machine": MACHINE, "versions": {"python": "3.11.0"}},
            **fields,
        }
        made.metadata[METADATA_KEY] = own
        folder = self.root / "notebooks" if edition == "reference" else self.root / "results" / edition
        folder.mkdir(parents=True, exist_ok=True)
        nb.write(made, folder / f"{name}.ipynb")
        return folder / f"{name}.ipynb"

    def run(self, *arguments: str) -> int:
        """Run a command of the command line in this process, and return its exit code."""
        return cli.run(list(arguments))

    def start(self, *arguments: str, code: str = COMMAND[2], **env: str) -> "subprocess.Popen[str]":
        """Start a command in a process of its own, its stdout and stderr as pipes."""
        command = [sys.executable, "-c", code, *arguments]
        return subprocess.Popen(
            command,
            cwd=self.root,
            env={**os.environ, **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """An empty project, which is also the current folder."""
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "efficient-training"\n', encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    made = Project(tmp_path)
    made.tier("cpu", CPU)
    return made
