"""Text as it is printed: safe for a terminal, no wider than it, and of long lists the beginning."""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Collection, Sequence

CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Begins of escape sequences, changes of direction, and parts of names that are not UTF-8; not tab and newline."""


def visible(text: str) -> str:
    """The text with control characters as they are written in Python: they move no cursor, and change no title."""
    return CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)


def one_line(text: str) -> str:
    """The same for a name or a cell, which cannot end its line."""
    return visible(text).replace("\n", "\\n").replace("\t", "\\t")


def listed(names: Sequence[object], most: int = 5) -> str:
    """The names with commas between them; of more than `most` the first ones, and dots."""
    return ", ".join(map(str, names[:most])) + ", ..." * (len(names) > most)


def several(names: Collection[object], most: int = 3) -> str:
    """The names with commas between them; of more than `most` the first ones, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(str, [*names][:most])) + more


def wrapped(line: str, columns: int, indent: int = 2) -> list[str]:
    """Lines no wider than the terminal; words are not cut. indent: of all but the first."""
    blanks = " " * indent
    return textwrap.wrap(
        line, max(columns, 40), subsequent_indent=blanks, break_long_words=False, break_on_hyphens=False
    )


def printable() -> None:
    """Print what a terminal's encoding lacks, and parts of names that are not UTF-8, as Python writes them."""
    for out in (sys.stdout, sys.stderr):
        if hasattr(out, "reconfigure"):
            out.reconfigure(errors="backslashreplace")
