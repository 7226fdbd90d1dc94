"""What was found in a file, and how much of the file was understood."""

from __future__ import annotations

from dataclasses import dataclass, field

from gradlab.audit.finding import Finding
from gradlab.audit.source.files import Source


@dataclass
class FileResult:
    source: Source
    findings: list[Finding] = field(default_factory=list)
    elsewhere: list[Finding] = field(default_factory=list)  # in files that it imports
    undecided: list[tuple[int, str]] = field(default_factory=list)
    loops: list[str] = field(default_factory=list)  # lines of the training loops that were followed
    lost: list[int] = field(default_factory=list)  # lines of backward passes in none of them
    ineffective: list[tuple[str, str]] = field(default_factory=list)  # positions of comments that silence nothing
