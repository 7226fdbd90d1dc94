"""Where findings are reported, and which are silenced there."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from gradlab.audit.finding import Finding
from gradlab.audit.source.files import Source
from gradlab.audit.source.ignore_comments import silenced


def located(found: list[Finding], source: Source) -> list[Finding]:
    """Findings in a file without those that it silences, their columns counted in characters."""
    lines = source.text.split("\n")
    for one in found:
        one.column = characters(lines, one.line, one.column)
        one.end_column = characters(lines, one.end_line, one.end_column)
    return [one for one in found if not silenced(lines, one)]


def beside(one: Finding, given: Path) -> Finding:
    """A finding in an imported file, its path absolute or relative as the audited file's is."""
    return one if given.is_absolute() else replace(one, path=os.path.relpath(one.path))


def characters(lines: list[str], line: int, column: int) -> int:
    """A column counted in characters; the parser counts bytes of UTF-8."""
    if not 0 < line <= len(lines) or lines[line - 1].isascii():
        return column
    return len(lines[line - 1].encode("utf-8", "replace")[: column - 1].decode("utf-8", "ignore")) + 1
