"""A file's findings fixed one by one: a new text is taken only if its audit has fewer findings, and no new ones."""

from __future__ import annotations

import difflib
import os
import stat
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from gradlab.audit.file_audit import audit
from gradlab.audit.finding import Finding
from gradlab.audit.fixes.registry import FIXES
from gradlab.audit.fixes.source_lines import SourceLines, split
from gradlab.audit.output import painted
from gradlab.audit.rules.registry import Rule, load_rules
from gradlab.audit.source.files import Source, encoding_of, normalised, parse
from gradlab.audit.source.project import Project

ROUNDS = 200
"""Findings of a file that are fixed at most."""
SIGNS = {"+": "32", "-": "31", "@": "36"}
"""Colours of the lines of a diff."""


@dataclass
class FileFix:
    path: Path
    old: list[str] = field(default_factory=list)
    new: list[str] = field(default_factory=list)
    encoding: str = "utf-8"
    fixed: list[Finding] = field(default_factory=list)
    refused: str = ""

    def diff(self) -> list[str]:
        """Lines of a unified diff, without their ends."""
        name = self.path.as_posix()
        found: list[str] = []
        for line in difflib.unified_diff(self.old, self.new, name, name):
            found += [line.rstrip("\r\n"), *([] if line.endswith(("\r", "\n")) else ["\\ No newline at end of file"])]
        return found


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


def fix_file(path: Path, selected: dict[str, Rule]) -> FileFix:
    """What would be written; `refused` is the reason why nothing can be."""
    result = FileFix(path)
    if path.suffix == ".ipynb":
        result.refused = "notebooks are not fixed"
        return result
    try:
        raw = path.read_bytes()
        result.encoding = encoding_of(raw)
        text = raw.decode(result.encoding)
        if text.encode(result.encoding) != raw:
            raise ValueError
    except (OSError, ValueError, LookupError, SyntaxError):
        result.refused = "its bytes cannot be read and written back the same"
        return result
    lines = result.old = split(text)
    everything = {**load_rules(), **selected}
    for _ in range(ROUNDS):
        better = step(path, lines, selected, everything, result)
        if better is None:
            break
        lines = better
    result.new = lines
    return result


def step(
    path: Path, lines: list[str], selected: dict[str, Rule], everything: dict[str, Rule], result: FileFix
) -> list[str] | None:
    """The text with one finding less."""
    source = parsed(path, lines)
    if source.tree is None:
        return None
    text = SourceLines(lines, source.tree)
    found = audit(source, Project(), everything).findings
    counts = Counter(f.code for f in found)
    for one in found:
        for new in FIXES[one.code](text, one) if one.code in FIXES and one.code in selected else ():
            left = remaining(path, new, everything)
            if left is not None and left[one.code] < counts[one.code] and left <= counts:
                result.fixed.append(one)
                return new
    return None


def remaining(path: Path, lines: list[str], everything: dict[str, Rule]) -> Counter[str] | None:
    source = parsed(path, lines)
    return None if source.tree is None else Counter(f.code for f in audit(source, Project(), everything).findings)


def parsed(path: Path, lines: list[str]) -> Source:
    source = Source(path, normalised("".join(lines)))
    parse(source)
    return source


def write(result: FileFix) -> str:
    """Write the new text whole or not at all; returns the reason where it could not be written."""
    target = result.path.resolve()
    try:
        mode = stat.S_IMODE(target.stat().st_mode)
        if not mode & 0o222 or not os.access(target, os.W_OK):
            return "is read-only"
        if target.read_bytes() != "".join(result.old).encode(result.encoding):
            return "was changed meanwhile"
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write("".join(result.new).encode(result.encoding))
            os.chmod(name, mode)
            os.replace(name, target)
        except BaseException:
            os.unlink(name)
            raise
    except (OSError, UnicodeError) as error:
        return f"could not be written: {getattr(error, 'strerror', None) or error}"
    return ""
