"""Colours on a terminal."""

from __future__ import annotations

import os
from typing import TextIO


def coloured(out: TextIO) -> bool:
    """Whether an output shows colours."""
    return out is not None and out.isatty() and not os.environ.get("NO_COLOR")


def painted(text: str, code: str, colour: bool) -> str:
    """`code`: of ECMA-48."""
    return f"\033[{code}m{text}\033[0m" if colour else text
