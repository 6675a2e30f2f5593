"""One notebook run by papermill, in a kernel of this very interpreter and of a fixed environment."""

import logging
import re
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any

from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager, KernelManager
from nbclient.exceptions import DeadKernelError
from nbformat import NotebookNode
from papermill import execute_notebook
from papermill.engines import NBClientEngine, NotebookExecutionManager, papermill_engines
from papermill.exceptions import PapermillExecutionError

from .notebook import label

START_TIMEOUT_S = 120
ENGINE = "efficient-training"

ENVIRONMENT = {
    "PYTHONHASHSEED": "0",
    "MPLBACKEND": "module://matplotlib_inline.backend_inline",
    "PYTHONSTARTUP": "",
    "TOKENIZERS_PARALLELISM": "false",
    "PYDEVD_DISABLE_FILE_VALIDATION": "1",
}
"""The same sets and figures on each run, no start-up file of the user, no warning of the debugger."""

OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
"""Nothing is fetched unless the tier says so."""

OnCell = Callable[[int, NotebookNode], None]


class NotebookFailed(Exception):
    """A cell raised, or the kernel died in it. `full` is the whole traceback, for the log."""

    def __init__(self, short: str, full: str) -> None:
        super().__init__(short)
        self.full = full


class Manager(AsyncKernelManager):
    """Starts kernels of this interpreter, whatever kernels are registered; what they print goes to `terminal`."""

    terminal: IO[str] | None = None
    environment: Mapping[str, str] = MappingProxyType({})

    @property
    def kernel_spec(self) -> KernelSpec:
        """A specification made here; `-f` and the connection file are jupyter_client's convention."""
        argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        return KernelSpec(argv=argv, env=dict(self.environment), display_name="Python 3", language="python")

    async def start_kernel(self, **kwargs: Any) -> None:  # type: ignore[override]
        """Start the kernel with its own stdout and stderr, which no cell sees, in the log."""
        await KernelManager._async_start_kernel(self, stdout=self.terminal, stderr=self.terminal, **kwargs)


class _Progress(NotebookExecutionManager):  # type: ignore[misc]
    """Papermill's record of a run, which also tells somebody of each cell that starts."""

    on_cell: OnCell

    def cell_start(self, cell: NotebookNode, cell_index: int | None = None, **kwargs: Any) -> None:
        """Called by papermill before each cell."""
        self.on_cell(cell_index or 0, cell)
        super().cell_start(cell, cell_index, **kwargs)


class _Engine(NBClientEngine):  # type: ignore[misc]
    @classmethod
    def execute_notebook(cls, nb: NotebookNode, kernel_name: str, **kwargs: Any) -> NotebookNode:
        manager = _Progress(nb, progress_bar=False)
        manager.on_cell = kwargs.pop("on_cell")
        for key in ("output_path", "progress_bar", "autosave_cell_every"):
            kwargs.pop(key, None)
        manager.notebook_start()
        try:
            cls.execute_managed_notebook(manager, kernel_name, **kwargs)
        finally:
            manager.notebook_complete()
        executed: NotebookNode = manager.nb
        return executed


papermill_engines.register(ENGINE, _Engine)


def run(
    notebook: NotebookNode,
    parameters: Mapping[str, Any],
    *,
    folder: Path,
    log: IO[str],
    network: bool = False,
    on_cell: OnCell,
) -> NotebookNode:
    """The executed notebook, its outputs as they came. Runs in `folder`; raises `NotebookFailed`.

    `on_cell` is called with the index of each cell and the cell, before it runs. On `KeyboardInterrupt` the kernel
    is shut down; where this process is killed, the kernel notices within about a second and leaves by itself.
    """
    at = [NotebookNode(cell_type="code", source="", id="none, while it started")]

    def started(index: int, cell: NotebookNode) -> None:
        at[0] = cell
        on_cell(index, cell)

    with tempfile.TemporaryDirectory(prefix="efficient-training-", ignore_cleanup_errors=True) as empty:
        # An empty IPYTHONDIR keeps the user's IPython profile and its start-up files out of the run.
        environment = {**ENVIRONMENT, **({} if network else OFFLINE), "IPYTHONDIR": empty}
        manager = type("RunManager", (Manager,), {"terminal": log, "environment": environment})
        try:
            executed: NotebookNode = execute_notebook(
                notebook,
                None,
                dict(parameters),
                engine_name=ENGINE,
                kernel_name="python3",
                language="python",
                progress_bar=False,
                cwd=folder,
                start_timeout=START_TIMEOUT_S,
                kernel_manager_class=manager,
                extra_arguments=["--log-level=ERROR"],
                coalesce_streams=True,
                on_cell=started,
            )
            return executed
        except PapermillExecutionError as error:
            raise _failure(error, at[0]) from None
        except (DeadKernelError, RuntimeError, TimeoutError) as error:
            short = f"cell {label(at[0])}: the kernel died ({error}); out of memory is the usual cause"
            raise NotebookFailed(short, f"{type(error).__name__}: {error}") from None


def _failure(error: PapermillExecutionError, cell: NotebookNode) -> NotebookFailed:
    full = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(error.traceback))
    lines = re.findall(r"^-+> (\d+) (.*)$", full.partition("Cell In")[2].partition("\nFile ")[0], re.M)
    where = f"cell {label(cell)} (code cell {error.exec_count})"
    where += f", line {lines[-1][0]}: {lines[-1][1].strip()}" if lines else ""
    what = f"{error.ename}: {error.evalue}".partition("\n")[0][:300]
    return NotebookFailed(f"{where}\n{what}", full or what)


def quiet_papermill(log: IO[str]) -> None:
    """Send papermill's own messages to `log` instead of the terminal."""
    logger = logging.getLogger("papermill")
    logger.handlers[:] = [logging.StreamHandler(log)]
    logger.propagate = False
