"""A table of strings: drawn in a terminal, aligned with blanks elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def show(title: str, names: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table; the first two columns are words, the others numbers."""
    if not sys.stdout.isatty():
        print(title, *lines(names, rows), sep="\n", flush=True)
        return
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(title), title_justify="left", box=SIMPLE_HEAD, padding=(0, 1))
    for i, name in enumerate(names):
        table.add_column(Text(name), justify="left" if i < 2 else "right")
    for row in rows:
        table.add_row(*map(Text, row))
    Console(highlight=False).print(table)


def lines(names: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A line a row, and one for the names."""
    widths = [max(map(len, column)) for column in zip(names, *rows, strict=True)]
    aligned = [
        [
            cell.ljust(width) if i < 2 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        for row in (names, *rows)
    ]
    return ["  ".join(row).rstrip() for row in aligned]
