"""Run one configuration in a process of its own, so that none leaves its cache, context or fragmentation to the next.

The function is named, not pickled: `module:function`, called with JSON and returning JSON.
"""

import importlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

LAST_LINES = 8


class IsolatedRunFailed(RuntimeError):
    """The process ended without a result; the message ends with the last lines that it wrote to stderr."""


def run_isolated(
    function: str,
    arguments: dict[str, Any],
    *,
    timeout_s: float | None = None,
    environment: Mapping[str, str] | None = None,
) -> Any:
    """Call `function` ("package.module:name") with keyword `arguments` in a fresh interpreter, and return its result.

    Arguments and result are what JSON can hold; `environment` is added to the process's.
    Raises `IsolatedRunFailed` where the process dies (killed for memory,
    say) or raises, and on a timeout, after which it is killed and waited for.
    """
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder, "result.json")
        command = [sys.executable, "-m", __name__, function, str(result)]
        try:
            done = subprocess.run(
                command,
                input=json.dumps(arguments),
                text=True,
                capture_output=True,
                timeout=timeout_s,
                check=False,
                env={**os.environ, **(environment or {})},
            )
        except subprocess.TimeoutExpired:
            raise IsolatedRunFailed(f"{function} took more than {timeout_s} s and was ended") from None
        if done.returncode or not result.exists():
            how = f"killed by signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
            tail = "\n".join(done.stderr.splitlines()[-LAST_LINES:])
            raise IsolatedRunFailed(f"{function}: {how}\n{tail}".rstrip())
        return json.loads(result.read_text(encoding="utf-8"))


def _main(function: str, result: str) -> None:
    module, _, name = function.partition(":")
    made = getattr(importlib.import_module(module), name)(**json.load(sys.stdin))
    part = Path(f"{result}.{os.getpid()}")
    part.write_text(json.dumps(made), encoding="utf-8")
    part.replace(result)


if __name__ == "__main__":
    _main(*sys.argv[1:3])
