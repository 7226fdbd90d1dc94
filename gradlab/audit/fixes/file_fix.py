"""A file's findings mended one by one: a new text is taken only if the audit of it has less to say, and nothing new."""

from __future__ import annotations

import difflib
import os
import stat
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from gradlab.audit import rules
from gradlab.audit.file_audit import audit
from gradlab.audit.finding import Finding
from gradlab.audit.fixes import FIXES
from gradlab.audit.fixes.source_lines import Page, split
from gradlab.audit.source.files import Source, encoding_of, parse
from gradlab.audit.source.project import Project

ROUNDS = 200


@dataclass
class Outcome:
    path: Path
    old: list[str] = field(default_factory=list)
    new: list[str] = field(default_factory=list)
    encoding: str = "utf-8"
    mended: list[Finding] = field(default_factory=list)
    refused: str = ""

    def diff(self) -> list[str]:
        """Lines of a unified diff, without their ends."""
        name = self.path.as_posix()
        found: list[str] = []
        for line in difflib.unified_diff(self.old, self.new, name, name):
            found += [line.rstrip("\r\n"), *([] if line.endswith(("\r", "\n")) else ["\\ No newline at end of file"])]
        return found


def fixed(path: Path, selected: dict[str, rules.Rule]) -> Outcome:
    """What would be written; `refused` says why nothing can be."""
    outcome = Outcome(path)
    if path.suffix == ".ipynb":
        outcome.refused = "notebooks are not mended"
        return outcome
    try:
        raw = path.read_bytes()
        outcome.encoding = encoding_of(raw)
        text = raw.decode(outcome.encoding)
        if text.encode(outcome.encoding) != raw:
            raise ValueError
    except (OSError, ValueError, LookupError, SyntaxError):
        outcome.refused = "its bytes cannot be read and written back the same"
        return outcome
    lines = outcome.old = split(text)
    everything = {**rules.load(), **selected}
    for _ in range(ROUNDS):
        better = step(path, lines, selected, everything, outcome)
        if better is None:
            break
        lines = better
    outcome.new = lines
    return outcome


def step(
    path: Path, lines: list[str], selected: dict[str, rules.Rule], everything: dict[str, rules.Rule], outcome: Outcome
) -> list[str] | None:
    """The text with one finding less."""
    source = parsed(path, lines)
    if source.tree is None:
        return None
    page = Page(lines, source.tree)
    found = audit(source, Project(), everything).findings
    counts = Counter(f.code for f in found)
    for one in found:
        for new in FIXES[one.code](page, one) if one.code in FIXES and one.code in selected else ():
            left = remaining(path, new, everything)
            if left is not None and left[one.code] < counts[one.code] and left <= counts:
                outcome.mended.append(one)
                return new
    return None


def remaining(path: Path, lines: list[str], everything: dict[str, rules.Rule]) -> Counter[str] | None:
    source = parsed(path, lines)
    return None if source.tree is None else Counter(f.code for f in audit(source, Project(), everything).findings)


def parsed(path: Path, lines: list[str]) -> Source:
    source = Source(path, "".join(lines).lstrip("\ufeff").replace("\r\n", "\n").replace("\r", "\n"))
    parse(source)
    return source


def write(outcome: Outcome) -> str:
    """Whole or not at all; the reason where it could not be."""
    target = outcome.path.resolve()
    try:
        mode = stat.S_IMODE(target.stat().st_mode)
        if not mode & 0o222 or not os.access(target, os.W_OK):
            return "is read-only"
        if target.read_bytes() != "".join(outcome.old).encode(outcome.encoding):
            return "was changed meanwhile"
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write("".join(outcome.new).encode(outcome.encoding))
            os.chmod(name, mode)
            os.replace(name, target)
        except BaseException:
            os.unlink(name)
            raise
    except (OSError, UnicodeError) as error:
        return f"could not be written: {getattr(error, 'strerror', None) or error}"
    return ""
