"""Mistakes that `gradlab.audit` finds in the text of a loop and `gradlab.watch` while it runs: one table for both."""

from __future__ import annotations

import difflib
import re

from gradlab.codes import accumulation, advice, distributed, loss, order, reading, scaler, schedule
from gradlab.codes.code import SEVERITIES, Code

__all__ = ["CODES", "NAMED", "SEVERITIES", "UNREADABLE", "Code", "called", "closest", "explained"]

PARTS = (reading, order, scaler, accumulation, schedule, distributed, loss, advice)
CODES = {code.code: code for code in sorted((c for part in PARTS for c in part.CODES), key=lambda c: c.code)}
NAMED = {code.name: code for code in CODES.values()}
UNREADABLE = reading.CODES[0].code


def called(given: str) -> Code | None:
    """What has this code, or this name."""
    return CODES.get(given.upper()) or NAMED.get(given.lower())


def closest(given: str) -> str | None:
    """The code or name that was meant, perhaps. Of a number only the beginning of a code tells."""
    if re.fullmatch(r"GL\d*", given.upper()):
        return next((code for code in CODES if code.startswith(given.upper()) and code != UNREADABLE), None)
    return next(iter(difflib.get_close_matches(given, [*CODES, *NAMED], n=1)), None)


def explained(code: Code) -> str:
    example = "\n".join("    " + line for line in code.example.split("\n"))
    says = f"{code.code} {code.name} ({code.severity})\n\n{code.message}.\n\nWhy: {code.why}"
    return f"{says}\n\nInstead: {code.mend}.\n\n{example}"
