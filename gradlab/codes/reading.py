"""Texts in which nothing can be looked for."""

from __future__ import annotations

from gradlab.codes.code import Code

CODES = (
    Code(
        "GL000",
        "unreadable",
        "error",
        "the text is neither Python nor a notebook to this version of Python, or cannot be read",
        "Nothing is known of it, which is not the same as nothing found.",
        "mend the text, exclude the file, or audit with a later Python",
        '[tool.gradlab.audit]\nexclude = ["legacy/*.py"]',
    ),
)
