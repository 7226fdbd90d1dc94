"""A table of strings: drawn in a terminal, aligned with blanks elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from gradlab.base.visible import one_line, visible


def fitting(names: Sequence[str], rows: Sequence[Sequence[str]], least: Sequence[str], width: int) -> list[str]:
    """The columns that fit side by side; those of `least` go first, the last of them first."""
    kept, spare = list(names), list(least)
    while spare and sum(max(map(len, c)) + 2 for c in zip(names, *rows, strict=True) if c[0] in kept) > width - 2:
        kept.remove(spare.pop())
    return kept


def show(title: str, names: Sequence[str], rows: Sequence[Sequence[str]], least: Sequence[str] = ()) -> None:
    """Print a table; the first two columns are words, the others numbers. least: what a narrow terminal leaves out."""
    title, rows = visible(title), [[one_line(cell) for cell in row] for row in rows]
    if not sys.stdout.isatty():
        print(title, *lines(names, rows), sep="\n", flush=True)
        return
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    kept = fitting(names, rows, least, console.width)
    chosen = [i for i, name in enumerate(names) if name in kept]
    table = Table(title=Text(title), title_justify="left", box=SIMPLE_HEAD, padding=(0, 1))
    for i in chosen:
        table.add_column(Text(names[i]), justify="left" if i < 2 else "right", no_wrap=len(kept) < len(names))
    for row in rows:
        table.add_row(*(Text(row[i]) for i in chosen))
    console.print(table)
    if len(kept) < len(names):
        console.print(f"(no room for {', '.join(name for name in names if name not in kept)})")


def lines(names: Sequence[str], rows: Sequence[Sequence[str]], words: Sequence[str] | None = None) -> list[str]:
    """A line a row, and one for the names. words: the columns that begin at the left; else the first two."""
    widths = [max(map(len, column)) for column in zip(names, *rows, strict=True)]
    left = names[:2] if words is None else words
    sides = [str.ljust if name in left else str.rjust for name in names]
    aligned = ([s(c, w) for s, c, w in zip(sides, row, widths, strict=True)] for row in (names, *rows))
    return ["  ".join(row).rstrip() for row in aligned]
