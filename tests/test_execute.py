"""Real runs of small notebooks in real kernels."""

import json
import os
import pty
import re
import shutil
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("papermill")

from efficient_training import notebook as nb
from efficient_training.display import METADATA_KEY
from efficient_training.editions import load_edition
from efficient_training.validation import validate

RECORD = """#| label: memory-steps
from efficient_training.records import record
made = record("memory.steps", steps, "count")"""

CLAIM = """from efficient_training.claims import claim
_ = claim("memory.few", "few steps", lambda value: value < 4, on=[made])"""

WAIT = """import os, pathlib, time
folder = pathlib.Path(os.environ["FLAGS"])
(folder / "kernel").write_text(str(os.getpid()))
while not (folder / "go").exists():
    time.sleep(0.05)"""


def own(path: Path) -> dict[str, Any]:
    data: dict[str, Any] = nb.read(path).metadata[METADATA_KEY]
    return data


def wait_for(condition: Any, seconds: float = 60) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "waited too long"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/stat")
    return not status.exists() or status.read_text().rpartition(")")[2].split()[0] != "Z"


def test_executes_into_an_edition_and_skips_what_is_fresh(project: Any, capsys: pytest.CaptureFixture[str]) -> None:
    source = project.notebook("01-memory", [RECORD, CLAIM])
    before = source.read_bytes()
    assert project.run("execute", "--edition", "here") == 0
    out = capsys.readouterr().out
    assert "01-memory: done in" in out
    assert "1 records; 1 claims held" in out
    path = project.root / "results/here/01-memory.ipynb"
    made = own(path)
    validate(made, "provenance", "test")
    assert (made["edition"], made["tier"], made["parameters"]) == ("here", "cpu", {})
    assert source.read_bytes() == before, "only --reference writes to notebooks/"
    assert load_edition(project.root, "here").records["memory.steps"].value == 3
    text = path.read_text()
    for private in (socket.gethostname(), str(project.root), "papermill_version", "execution_time"):
        assert f'"{private}' not in text
    counts = [cell.execution_count for cell in nb.read(path).cells if cell.cell_type == "code"]
    assert counts == [1, 2, 3], "numbered, as nbval asks"
    log = (project.root / "results/here/run.log").read_text()
    assert "cell 3: memory-steps" in log
    assert "encryption" not in log

    first = path.stat().st_mtime_ns
    assert project.run("execute", "--edition", "here") == 0
    assert "01-memory: fresh, skipped" in capsys.readouterr().out
    assert path.stat().st_mtime_ns == first
    assert project.run("execute", "--edition", "here", "--force", "--notebook", "1") == 0
    assert path.stat().st_mtime_ns > first


def test_tier_parameters_are_injected_and_part_of_the_key(project: Any, capsys: pytest.CaptureFixture[str]) -> None:
    project.notebook("01-memory", [RECORD])
    project.tier("cpu", "name: cpu\ntitle: CPU\nrequires: {device: cpu}\nparameters: {common: {steps: 5}}\n")
    assert project.run("execute", "--edition", "here") == 0
    path = project.root / "results/here/01-memory.ipynb"
    assert own(path)["parameters"] == {"steps": 5}
    assert load_edition(project.root, "here").records["memory.steps"].value == 5
    assert "injected-parameters" in path.read_text()
    assert project.run("status", "--edition", "here", "--strict") == 0
    project.tier("cpu", "name: cpu\ntitle: CPU\nrequires: {device: cpu}\nparameters: {01-memory: {steps: 6}}\n")
    capsys.readouterr()
    assert project.run("status", "--edition", "here", "--strict") == 1
    assert "01-memory  stale: parameters changed: steps" in capsys.readouterr().out


def test_reference_is_made_in_place_with_defaults_and_without_churn(project: Any) -> None:
    path = project.notebook("01-memory", [RECORD, "print('a'); import time; time.sleep(0.1); print('b')"])
    project.tier("cpu", "name: cpu\ntitle: CPU\nrequires: {device: cpu}\nparameters: {common: {steps: 5}}\n")
    assert project.run("execute", "--reference") == 0
    first = json.loads(path.read_text())
    assert load_edition(project.root, "reference").records["memory.steps"].value == 3
    assert "injected-parameters" not in path.read_text()
    assert len(first["cells"][3]["outputs"]) == 1, "a stream is one output, however it came"
    assert path.read_text().endswith("}\n")
    assert project.run("execute", "--reference", "--force") == 0
    again = json.loads(path.read_text())
    for made in (first, again):
        made["metadata"][METADATA_KEY].update(seconds=0, date="")
    assert first == again
    assert sorted(item.name for item in (project.root / "notebooks").iterdir()) == ["01-memory.ipynb"]


def test_a_failing_notebook_is_told_with_its_cell_and_the_others_go_on(
    project: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    failing = project.notebook("01-memory", ["#| label: fig-memory\nx = 1\nraise ValueError('boom\\nsecond line')"])
    project.notebook("02-precision", ["import os; os._exit(1)"])
    project.notebook("03-checkpointing", [RECORD])
    untouched = failing.read_bytes()
    assert project.run("execute", "--reference") == 1
    out = capsys.readouterr().out
    assert "cell fig-memory (code cell 2), line 3: raise ValueError('boom\\nsecond line')" in out
    assert "ValueError: boom\n" in out
    assert "02-precision: failed" in out
    assert "cell c1: the kernel died" in out
    assert "1 done, 0 fresh, 2 failed (01-memory, 02-precision)" in out
    assert "Traceback" not in out
    assert failing.read_bytes() == untouched
    log = (project.root / "results/reference/run.log").read_text()
    assert "Traceback (most recent call last)" in log
    assert "second line" in log


def test_a_notebook_that_an_edition_may_not_hold_fails(project: Any, capsys: pytest.CaptureFixture[str]) -> None:
    project.notebook("01-memory", [RECORD, 'print("at", __import__("pathlib").Path.cwd())'])
    project.notebook("02-precision", ["import sys; print('careful', file=sys.stderr)", RECORD, CLAIM], "steps = 9")
    markdown = "from IPython.display import display, Markdown\ndisplay(Markdown('<b>bold</b>'))"
    project.notebook("03-checkpointing", [markdown])
    assert project.run("execute", "--edition", "here") == 1
    out = capsys.readouterr().out
    assert "01-memory, cell c2: prints the path" in out
    assert "03-checkpointing, cell c1: Markdown may hold no raw html" in out
    assert "cell c1 wrote to stderr: careful" in out
    assert "claim memory.few must hold everywhere, but does not: memory.steps = 9" in out
    assert [path.name for path in (project.root / "results/here").glob("*.ipynb")] == ["02-precision.ipynb"]


def test_a_place_that_cannot_be_written_is_told(project: Any, capsys: pytest.CaptureFixture[str]) -> None:
    project.notebook("01-memory", ["pass"])
    (project.root / "results/here/01-memory.ipynb").mkdir(parents=True)
    assert project.run("execute", "--edition", "here") == 1
    assert "01-memory: failed after" in capsys.readouterr().out
    (project.root / "results/other").write_text("a file")
    assert project.run("execute", "--edition", "other") == 2
    err = capsys.readouterr().err
    assert err.startswith(f"error: {project.root / 'results/other'}: ")
    assert err.count("\n") == 1
    (project.root / "results/linked").symlink_to(project.root / "results/here")
    assert project.run("execute", "--edition", "linked") == 2
    assert "results/linked: a link, which no edition may be" in capsys.readouterr().err


def test_kill_9_leaves_no_kernel_and_no_half_edition_and_the_next_run_resumes(project: Any) -> None:
    project.notebook("01-memory", [RECORD])
    project.notebook("02-precision", [WAIT])
    flags = str(project.root)
    run = project.start("execute", "--edition", "here", FLAGS=flags)
    wait_for(lambda: (project.root / "kernel").exists() and (project.root / "kernel").read_text())
    kernel = int((project.root / "kernel").read_text())
    done = project.root / "results/here/01-memory.ipynb"
    first = done.read_bytes()

    second = project.start("execute", "--edition", "here", FLAGS=flags)
    out, err = second.communicate(timeout=60)
    assert (second.returncode, out) == (2, "")
    assert err.startswith("error: edition 'here' is being written by another run (results/here/.lock)")
    assert err.count("\n") == 1

    assert alive(kernel)
    run.send_signal(signal.SIGKILL)
    run.communicate(timeout=10)
    wait_for(lambda: not alive(kernel), 10)
    assert [path.name for path in done.parent.glob("*.ipynb")] == ["01-memory.ipynb"]
    assert done.read_bytes() == first

    (done.parent / ".02-precision.ipynb.abc.tmp").write_text("{")
    (project.root / "go").touch()
    run = project.start("execute", "--edition", "here", FLAGS=flags)
    out, err = run.communicate(timeout=60)
    assert (run.returncode, err) == (0, "")
    assert "01-memory: fresh, skipped" in out
    assert "02-precision: done" in out
    assert done.read_bytes() == first
    assert not list(done.parent.glob(".*.tmp"))


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_the_run_in_one_line_and_takes_the_kernel_with_it(project: Any, sent: signal.Signals) -> None:
    project.notebook("01-memory", [WAIT])
    project.notebook("02-precision", [RECORD])
    run = project.start("execute", "--reference", FLAGS=str(project.root))
    wait_for(lambda: (project.root / "kernel").exists() and (project.root / "kernel").read_text())
    kernel = int((project.root / "kernel").read_text())
    run.send_signal(sent)
    out, err = run.communicate(timeout=30)
    assert run.returncode == 130
    assert err == "interrupted in 01-memory; the same command goes on from there\n"
    assert "02-precision" not in out
    assert not alive(kernel)
    assert METADATA_KEY not in nb.read(project.root / "notebooks/01-memory.ipynb").metadata


def test_the_kernel_has_this_interpreter_and_a_fixed_environment(
    project: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = tmp_path / "jupyter/kernels/python3"
    spec.mkdir(parents=True)
    (spec / "kernel.json").write_text(json.dumps({"argv": ["/bin/false"], "display_name": "no", "language": "python"}))
    startup = tmp_path / "ipython/profile_default/startup"
    startup.mkdir(parents=True)
    (startup / "00.py").write_text("raise SystemExit('a start-up file of the user ran')")
    monkeypatch.setenv("JUPYTER_PATH", str(spec.parent.parent))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("MPLBACKEND", "nonsense")
    cell = """import os, sys
from efficient_training.records import record
names = ["PYTHONHASHSEED", "MPLBACKEND", "TOKENIZERS_PARALLELISM", "HF_HUB_OFFLINE", "JUPYTER_PATH"]
_ = record("memory.kernel", 1, "count", conditions={name: os.environ.get(name, "") for name in names}
    | {"same": sys.executable == EXPECTED, "folder": os.path.basename(os.getcwd())})"""
    project.notebook("01-memory", [cell.replace("EXPECTED", repr(sys.executable))])
    assert project.run("execute", "--edition", "here") == 0
    seen = load_edition(project.root, "here").records["memory.kernel"].conditions
    assert seen["same"] is True
    assert seen["folder"] == "notebooks"
    assert (seen["PYTHONHASHSEED"], seen["TOKENIZERS_PARALLELISM"], seen["HF_HUB_OFFLINE"]) == ("0", "false", "1")
    assert seen["MPLBACKEND"] == "module://matplotlib_inline.backend_inline"
    project.tier("cpu", "name: cpu\ntitle: CPU\nnetwork: true\nrequires: {device: cpu}\n")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    assert project.run("execute", "--edition", "here", "--force") == 0
    assert load_edition(project.root, "here").records["memory.kernel"].conditions["HF_HUB_OFFLINE"] == ""


def test_changing_a_module_that_a_notebook_imports_makes_it_stale(project: Any, tmp_path: Path) -> None:
    """The package is copied, so that its modules can be edited; the runner and the kernel import the copy."""
    import efficient_training

    copy = tmp_path / "copy"
    shutil.copytree(Path(efficient_training.__file__).parent, copy / "efficient_training")
    project.notebook("01-memory", [RECORD])

    def command(*arguments: str) -> str:
        run = project.start(*arguments, PYTHONPATH=str(copy))
        out, err = run.communicate(timeout=60)
        assert (run.returncode, err) == (0, "")
        return str(out)

    assert "01-memory: done" in command("execute", "--edition", "here")
    for unrelated in ("claims.py", "cli.py", "units.py"):
        with (copy / "efficient_training" / unrelated).open("a") as file:
            file.write("\n# changed\n")
    assert "01-memory: fresh, skipped" in command("execute", "--edition", "here")
    with (copy / "efficient_training/records.py").open("a") as file:
        file.write("\n# changed\n")
    assert "01-memory  stale: an imported module changed (records)" in command("status", "--edition", "here")
    assert "01-memory: done" in command("execute", "--edition", "here")


def test_an_edition_is_of_one_machine_and_one_tier(project: Any, capsys: pytest.CaptureFixture[str]) -> None:
    project.notebook("01-memory", ["pass"])
    project.edition("here", "01-memory", {})
    assert project.run("execute", "--edition", "here") == 2
    err = capsys.readouterr().err
    assert "made on another machine or tier (its cpu is A CPU, here " in err
    assert err.count("\n") == 1
    project.edition("here", "01-memory", {}, tier="gpu")
    assert project.run("execute", "--edition", "here") == 2
    assert "its tier is gpu, here cpu" in capsys.readouterr().err


def test_a_terminal_shows_the_running_cell(project: Any) -> None:
    project.notebook("01-memory", ["#| label: fig-slow\nimport time; time.sleep(0.5)", RECORD])
    pid, terminal = pty.fork()
    if pid == 0:  # pragma: no cover
        os.environ.update(TERM="xterm", COLUMNS="100")
        os.chdir(project.root)
        code = "from efficient_training.cli import main; main()"
        os.execv(sys.executable, [sys.executable, "-c", code, "execute", "--edition", "here"])
    shown = b""
    try:
        while chunk := os.read(terminal, 4096):
            shown += chunk
    except OSError:  # Linux says so at the end of a terminal
        pass
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())
    assert re.search(r"\[1/1\] 01-memory .*2/4 fig-slow", text)
    assert "01-memory: done in" in text


WRITE = """import sys
from pathlib import Path
from efficient_training import notebook as nb
path = Path(sys.argv[1])
made = nb.read(path)
print("ready", flush=True)
for number in range(10**9):
    made.cells[0].source = f"# {number}\\n" + "x" * 300_000
    nb.write(made, path)
"""


def test_a_write_that_is_killed_leaves_a_whole_file(project: Any) -> None:
    path = project.notebook("01-memory", ["pass"])
    for delay in (0.05, 0.13):
        run = project.start(str(path), code=WRITE)
        assert run.stdout.readline() == "ready\n"
        time.sleep(delay)
        run.send_signal(signal.SIGKILL)
        run.communicate(timeout=10)
        nb.read(path)
    assert len(nb.read(path).cells[0].source) > 300_000
    nb.remove_leftovers(path.parent)
    assert [item.name for item in path.parent.iterdir()] == ["01-memory.ipynb"]


NO_PAPERMILL = "import sys; sys.modules['papermill'] = None; from efficient_training.cli import main; main()"


def test_without_papermill_one_line_says_what_to_do(project: Any) -> None:
    project.notebook("01-memory", ["pass"])
    run = project.start("execute", code=NO_PAPERMILL)
    out, err = run.communicate(timeout=30)
    assert (run.returncode, out) == (2, "")
    assert "no papermill" in err
    assert "make run" in err
    assert err.count("\n") == 1
