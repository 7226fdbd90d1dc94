"""Files that cannot be checked."""

from __future__ import annotations

from gradlab.codes.code import Code

CODES = (
    Code(
        code="GL000",
        name="unreadable",
        severity="error",
        message="the file cannot be read, or is neither Python nor a notebook to this version of Python",
        why="Nothing is known about it, which is not the same as nothing found.",
        wrong="print 'Python 2'",
        fix="correct the file, exclude it, or run the audit with a later Python",
        example='[tool.gradlab.audit]\nexclude = ["legacy/*.py"]',
        found_by=("audit",),
    ),
)
