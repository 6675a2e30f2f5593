import subprocess
from pathlib import Path
from typing import Any

import pytest

from efficient_training import notebook as nb
from efficient_training import provenance
from efficient_training.display import METADATA_KEY
from efficient_training.machine import Machine
from efficient_training.validation import validate

ROOT = Path(__file__).parent.parent


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package with the rooms that matter: instruments, a technique, words, the book."""
    folder = tmp_path / "efficient_training"
    for name in (
        *("records.py", "claims.py", "units.py", "cli.py", "book/render.py", "precision.py"),
        *("measure/__init__.py", "measure/memory.py", "measure/saved.py"),
    ):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# {name}\n")
    return folder


def modules(package: Path, project: Any, *cells: str) -> list[str]:
    source = nb.read(project.notebook("01-memory", cells))
    return [path.relative_to(package).as_posix() for path in provenance.modules(source, package)]


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        ("from efficient_training.records import record, Record", ["records.py"]),
        ("import efficient_training.records as r", ["records.py"]),
        ("from efficient_training import records, precision", ["precision.py", "records.py"]),
        ("from efficient_training.measure.memory import peak", ["measure/memory.py"]),
        ("from efficient_training.measure import memory", ["measure/memory.py"]),
        (
            "from efficient_training.measure import peak",
            ["measure/__init__.py", "measure/memory.py", "measure/saved.py"],
        ),
        ("def f():\n    from efficient_training.precision import g", ["precision.py"]),
        ("%matplotlib inline\n!ls\nfrom efficient_training.records import record", ["records.py"]),
        ("from efficient_training.units import unit", []),
        ("import efficient_training.cli, efficient_training.book.render", []),
        ("import efficient_training", []),
        ("import torch\nfrom records import x\nfrom . import y", []),
        ("this is no Python", []),
    ],
)
def test_modules_imported_directly_count_on_their_floors(
    package: Path, project: Any, cell: str, expected: list[str]
) -> None:
    assert modules(package, project, cell) == expected


def test_the_hash_follows_code_and_modules_and_nothing_else(package: Path, project: Any) -> None:
    cell = "from efficient_training.measure.memory import peak\nfrom efficient_training.units import unit"

    def digest(*cells: str, parameters: str = "steps = 3") -> str:
        return provenance.source_hash(nb.read(project.notebook("01-memory", cells, parameters)), package)

    first = digest(cell)
    assert digest(cell) == first
    assert digest(cell, parameters="steps = 4") != first
    assert digest(cell + "\n") != first
    assert digest(cell, "pass") != first
    assert digest("a", "b") != digest("ab") != digest("b", "a")
    for unrelated in ("units.py", "cli.py", "measure/saved.py", "records.py"):
        (package / unrelated).write_text("# changed")
    assert digest(cell) == first
    (package / "measure/memory.py").write_text("# changed")
    assert digest(cell) != first


def test_launched_scripts_count_and_so_does_what_they_import(package: Path, project: Any, tmp_path: Path) -> None:
    source, scripts = nb.read(project.notebook("01-memory", ["x = 1"])), tmp_path / "01-memory"
    first = provenance.source_hash(source, package, scripts)
    assert first == provenance.source_hash(source, package)
    scripts.mkdir()
    (scripts / "train.py").write_text("from efficient_training.precision import cast")
    (scripts / ".cache").write_text("left out")
    second = provenance.source_hash(source, package, scripts)
    assert second != first
    assert [path.name for path in provenance.modules(source, package, scripts)] == ["precision.py"]
    (package / "precision.py").write_text("# changed")
    third = provenance.source_hash(source, package, scripts)
    assert third != second
    (scripts / "train.yaml").write_text("stage: 2")
    assert provenance.source_hash(source, package, scripts) != third
    executed = nb.read(project.notebook("01-memory", ["x = 1"]))
    executed.metadata[METADATA_KEY] = {"parameters": {}, "source": third}
    found = provenance.freshness(source, executed, {}, scripts)
    assert (found.state, "train.yaml" in found.reason) == ("stale", True)


def test_line_endings_and_outputs_do_not_count(package: Path, project: Any) -> None:
    source = nb.read(project.notebook("01-memory", ["from efficient_training.records import record"]))
    first = provenance.source_hash(source, package)
    (package / "records.py").write_bytes(b"# records.py\r\n")
    source.cells[2].outputs = [{"output_type": "stream", "name": "stdout", "text": "x"}]
    source.cells[0].source = "# Another title"
    assert provenance.source_hash(source, package) == first


def test_every_module_of_the_package_stands_on_a_known_floor() -> None:
    """A new module counts unless it is named; a name that is gone would hide a spelling mistake."""
    there = {path.stem for path in provenance.PACKAGE.iterdir() if path.suffix == ".py" or path.is_dir()}
    assert there >= provenance.BOOK
    counted = {path.stem for path in provenance.PACKAGE.glob("*.py")} - provenance.UNHASHED - {"__init__"}
    assert counted >= {"records", "claims", "figures", "display"}


def test_freshness_says_why(project: Any) -> None:
    cell = "from efficient_training.records import record"
    source = nb.read(project.notebook("01-memory", [cell]))
    executed = nb.read(project.edition("here", "01-memory", {}, parameters={"steps": 3, "gone": 1}))
    assert provenance.freshness(source, None, {}).state == "missing"
    assert provenance.freshness(source, source, {}).state == "missing"
    given = {"steps": 3, "gone": 1}
    assert provenance.freshness(source, executed, given).state == "fresh"
    stale = provenance.freshness(source, executed, {"steps": 4, "new": True})
    assert (stale.state, stale.reason) == ("stale", "parameters changed: gone, new, steps")
    changed = nb.read(project.notebook("01-memory", [cell, "pass"]))
    assert provenance.freshness(changed, executed, given).reason == "code cells changed"
    executed.metadata["efficient_training"]["source"] = "0" * 64
    assert provenance.freshness(source, executed, given).reason == "an imported module changed (records)"


def test_an_injected_cell_is_no_source(project: Any) -> None:
    import nbformat

    source = nb.read(project.notebook("01-memory", ["pass"]))
    first = provenance.source_hash(source)
    source.cells.insert(2, nbformat.v4.new_code_cell("steps = 9", metadata={"tags": [nb.INJECTED]}))
    assert provenance.source_hash(source) == first


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=Test", "-c", "user.email=test@example.org", "-c", "init.defaultBranch=main"]
    run = subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True)
    return run.stdout.strip()


def test_commit_and_what_makes_it_dirty(project: Any) -> None:
    path = project.notebook("01-memory", ["pass"])
    (project.root / "src").mkdir()
    module = project.root / "src/module.py"
    module.write_text("a = 1\n")
    assert provenance.commit(project.root) == (None, False)
    git(project.root, "init", "-q")
    assert provenance.commit(project.root) == (None, False)
    git(project.root, "add", ".")
    git(project.root, "commit", "-qm", "x")
    head = git(project.root, "rev-parse", "HEAD")
    assert provenance.commit(project.root) == (head, False)

    stream = {"output_type": "stream", "name": "stdout", "text": "x"}
    project.edition("reference", "01-memory", {"c1": [stream]})
    (project.root / "chapter.qmd").write_text("prose")
    assert provenance.commit(project.root) == (head, False), "outputs and prose do not count"
    module.write_text("a = 2\n")
    assert provenance.commit(project.root) == (head, True)
    module.write_text("a = 1\n")
    assert provenance.commit(project.root) == (head, False)
    project.notebook("01-memory", ["pass  # changed"])
    assert provenance.commit(project.root) == (head, True)
    git(project.root, "checkout", "-q", "--", str(path))
    project.notebook("02-new", ["pass"])
    assert provenance.commit(project.root) == (head, True), "a notebook that the commit does not have"


def test_provenance_passes_its_schema_and_names_no_place(project: Any) -> None:
    source = nb.read(project.notebook("01-memory", ["pass"]))
    made = provenance.provenance(
        source,
        edition="here",
        tier="cpu",
        parameters={"steps": 3, "shape": [1, 2]},
        machine=Machine("Linux x86_64", "A CPU", 2, 2**34),
        seconds=1.234,
        commit=("a" * 40, True),
    )
    validate(made, "provenance", "test")
    assert made["seconds"] == 1.2
    assert {"python", "efficient-training"} <= made["versions"].keys()
