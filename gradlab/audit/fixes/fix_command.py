"""`--diff` shows what `--fix` would write."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TextIO

from gradlab.audit.fixes.file_fix import Outcome, fixed, write
from gradlab.audit.output import painted
from gradlab.audit.rules import Rule

SIGNS = {"+": "32", "-": "31", "@": "36"}


def mend(paths: Iterable[Path], selected: dict[str, Rule], writing: bool, out: TextIO, colour: bool) -> int:
    """Shows the diff of each file, and then writes it; returns how many findings are, or would be, mended."""
    done = 0
    for path in paths:
        outcome = fixed(path, selected)
        if outcome.refused:
            print(f"{path}: not mended: {outcome.refused}", file=sys.stderr)
        if not outcome.mended:
            continue
        print(shown(outcome, colour), file=out, flush=True)
        error = write(outcome) if writing else ""
        if error:
            print(f"{path}: not mended: {error}", file=sys.stderr)
        else:
            done += len(outcome.mended)
    print(f"{'Mended' if writing else 'Would mend'} {done}.", file=sys.stderr)
    return done


def shown(outcome: Outcome, colour: bool) -> str:
    lines = []
    for line in outcome.diff():
        bold = line.startswith(("+++", "---"))
        lines.append(painted(line, "1" if bold else SIGNS.get(line[:1], "0"), colour))
    return "\n".join(lines)
