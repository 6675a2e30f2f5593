"""One rank, without a launcher: a script runs as Python would run it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from efficient_training.launch import exchange, local

SCRIPT = """\
import os, sys
os.chdir("/")
import beside
print(__name__, sys.argv, sys.path[0], __file__, os.path.exists(__file__), beside.__name__)
"""


@pytest.mark.parametrize("options", [(), ("-P",)])
def test_a_script_runs_as_python_would(options: tuple[str, ...], tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.mkdir()
    (real / "main.py").write_text(SCRIPT.replace("import beside", "beside = os") if options else SCRIPT)
    (real / "beside.py").touch()
    (tmp_path / "link.py").symlink_to(real / "main.py")
    said = [
        subprocess.run(
            [sys.executable, *options, *how, "link.py", "a b"],
            cwd=tmp_path,
            env={**os.environ, "COVERAGE_PROCESS_START": ""},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for how in ((), ("-m", "efficient_training.launch.rank"))
    ]
    assert said[0] == said[1] != ""


def test_a_syntax_error_says_what_before_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(exchange.FOLDER, str(tmp_path))
    try:
        compile("f(:", "imported.py", "exec")
    except SyntaxError as error:
        exchange.record_error(error, error.__traceback__)
    assert [error.what for error in exchange.read_errors(tmp_path)] == [
        "SyntaxError: invalid syntax (imported.py, line 1)"
    ]


def test_what_a_killed_guard_leaves_is_ended_wherever_it_went(tmp_path: Path) -> None:
    for folder, ended in ((tmp_path / "another", False), (tmp_path, True)):
        left = subprocess.Popen(["sleep", "60"], start_new_session=True, env={exchange.FOLDER: str(folder)})
        try:
            local._end_orphans(tmp_path)
            assert (left.poll() is not None) == ended
        finally:
            left.kill()
            left.wait()
