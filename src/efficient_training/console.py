"""How the command line prints text and tables."""

import sys

from rich.console import Console
from rich.table import Table


def make_table(*columns: str) -> Table:
    """An empty table of these columns, without lines."""
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def make_console() -> Console:
    """For text that is never markup, and for tables, whose lines are not broken where there is no terminal."""
    width = None if sys.stdout.isatty() else 200
    return Console(markup=False, emoji=False, highlight=False, width=width)
