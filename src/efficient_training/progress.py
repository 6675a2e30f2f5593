"""What a run shows while it goes on: a live line for each notebook on a terminal, plain lines elsewhere."""

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text


class Report:
    """The run's voice. Use it as a context manager; `line` may be called at any time within."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._live: Progress | None = None
        self._task: TaskID | None = None
        self._started = 0.0
        self._width = 0

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            columns = TextColumn("{task.description}"), BarColumn(20), MofNCompleteColumn()
            self._live = Progress(
                *columns, TextColumn("{task.fields[cell]}"), TimeElapsedColumn(), console=self.console, transient=True
            )
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def line(self, text: str, style: str = "") -> None:
        """Print one line above the live ones; never interprets `text` as markup, never wraps it."""
        self.console.print(Text(text, style), soft_wrap=True)

    def start(self, name: str, cells: int, position: str) -> None:
        """A notebook of so many cells begins; `position` is like "2/4"."""
        self._started = time.monotonic()
        if self._live is not None:
            self._task = self._live.add_task(f"[{position}] {name}".replace("[", r"\["), total=cells, cell="")
        else:
            self.line(f"[{position}] {name}: running, {cells} cells")

    def cell(self, index: int, label: str) -> None:
        """The cell with this index begins; on a terminal only, since a log has its own lines."""
        if self._live is not None and self._task is not None:
            self._live.update(self._task, completed=index, cell=escape(label))

    def end(self, text: str, style: str = "") -> float:
        """The notebook has ended; returns the seconds that it took."""
        if self._live is not None and self._task is not None:
            self._live.remove_task(self._task)
            self._task = None
        seconds = time.monotonic() - self._started
        self.line(text.replace("{seconds}", f"{seconds:.1f} s"), style)
        return seconds
