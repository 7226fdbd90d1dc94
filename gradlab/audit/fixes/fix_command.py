"""`--diff` shows what `--fix` would write."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TextIO

from gradlab.audit.fixes.file_fix import FileFix, fix_file, write
from gradlab.audit.rules.registry import Rule
from gradlab.audit.terminal import painted

SIGNS = {"+": "32", "-": "31", "@": "36"}


def fix_files(paths: Iterable[Path], selected: dict[str, Rule], writing: bool, out: TextIO, colour: bool) -> int:
    """Print the diff of each file and, with `writing`, write it; returns how many findings are, or would be, fixed."""
    done = 0
    for path in paths:
        result = fix_file(path, selected)
        if result.refused:
            print(f"{path}: not fixed: {result.refused}", file=sys.stderr)
        if not result.fixed:
            continue
        print(shown(result, colour), file=out, flush=True)
        error = write(result) if writing else ""
        if error:
            print(f"{path}: not fixed: {error}", file=sys.stderr)
        else:
            done += len(result.fixed)
    print(f"{'Fixed' if writing else 'Would fix'} {done}.", file=sys.stderr)
    return done


def shown(result: FileFix, colour: bool) -> str:
    lines = []
    for line in result.diff():
        bold = line.startswith(("+++", "---"))
        lines.append(painted(line, "1" if bold else SIGNS.get(line[:1], "0"), colour))
    return "\n".join(lines)
