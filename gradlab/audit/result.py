"""What was found in a file, and what of it was understood."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from gradlab.audit.finding import Finding
from gradlab.audit.source.files import Source


@dataclass
class Result:
    source: Source
    findings: list[Finding] = field(default_factory=list)
    elsewhere: list[Finding] = field(default_factory=list)  # in files that it imports, seen from here
    undecided: list[tuple[int, str]] = field(default_factory=list)
    loops: list[str] = field(default_factory=list)  # lines of the loops that were followed
    followed: set[ast.AST] = field(default_factory=set)
    lost: list[int] = field(default_factory=list)  # lines of backward passes in none of them
    unheeded: list[tuple[str, str]] = field(default_factory=list)  # places of comments that silence nothing
