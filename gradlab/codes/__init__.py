"""Mistakes in training loops that `gradlab.audit` finds in the source and `gradlab.watch` while the loop runs.

A new code is one entry in the file of its group; `gradlab.codes.reference` makes the documentation page from them.
"""

from __future__ import annotations

import difflib
import re

from gradlab.codes import (
    accumulation,
    advice,
    call_order,
    distributed,
    loss,
    loss_meaning,
    mixed_precision,
    optimizers,
    reach,
    schedule,
    unreadable,
)
from gradlab.codes.code import SEVERITIES, Code

__all__ = ["CODES", "CODES_BY_NAME", "SEVERITIES", "UNREADABLE", "Code", "explain", "find_code", "suggest_code"]

GROUPS = (
    unreadable,
    call_order,
    mixed_precision,
    accumulation,
    schedule,
    distributed,
    loss,
    loss_meaning,
    reach,
    advice,
    optimizers,
)
CODES: dict[str, Code] = {c.code: c for c in sorted((c for group in GROUPS for c in group.CODES), key=lambda c: c.code)}
CODES_BY_NAME = {code.name: code for code in CODES.values()}
UNREADABLE = unreadable.CODES[0].code


def find_code(given: str) -> Code | None:
    """The code with this number or name."""
    return CODES.get(given.upper()) or CODES_BY_NAME.get(given.lower())


def suggest_code(given: str) -> str | None:
    """A number or name that is close. Numbers are close only if one is the beginning of the other."""
    if re.fullmatch(r"GL\d*", given.upper()):
        return next((code for code in CODES if code.startswith(given.upper()) and code != UNREADABLE), None)
    return next(iter(difflib.get_close_matches(given, [*CODES, *CODES_BY_NAME], n=1)), None)


def explain(code: Code) -> str:
    """As text for a terminal."""
    example = "\n".join("    " + line for line in code.example.split("\n"))
    heading = f"{code.code} {code.name} ({code.severity})"
    return f"{heading}\n\n{code.message}.\n\nWhy: {code.explanation}\n\nInstead: {code.fix}.\n\n{example}"
