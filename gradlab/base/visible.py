"""Text of files and names, made safe for a terminal."""

from __future__ import annotations

import re
import sys

CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Begins of escape sequences, changes of direction, and parts of names that are not UTF-8; not tab and newline."""


def visible(text: str) -> str:
    """The text with control characters as they are written in Python: they move no cursor, and change no title."""
    return CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)


def one_line(text: str) -> str:
    """The same for a name or a cell, which cannot end its line."""
    return visible(text).replace("\n", "\\n").replace("\t", "\\t")


def printable() -> None:
    """Print what a terminal's encoding lacks, and parts of names that are not UTF-8, as Python writes them."""
    for out in (sys.stdout, sys.stderr):
        if hasattr(out, "reconfigure"):
            out.reconfigure(errors="backslashreplace")
