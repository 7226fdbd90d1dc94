"""`# gradlab: ignore[CODE]`: what a comment silences, and what in it names no rule."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator

from gradlab.audit.finding import Finding
from gradlab.audit.source.files import Source
from gradlab.codes import find_code, suggest_code

IGNORED = re.compile(r"#\s*gradlab:\s*ignore\b\s*(\[[^\]\n]*\]?)?", re.I)


def silenced(lines: list[str], one: Finding) -> bool:
    """Whether a comment on the line, or on the last one of the statement, silences a finding."""
    for number in {one.line, one.end_line}:
        match = IGNORED.search(lines[number - 1]) if 0 < number <= len(lines) else None
        if match is not None and (
            match[1] is None or one.code in [c.code for word in words(match[1]) if (c := find_code(word))]
        ):
            return True
    return False


def words(brackets: str) -> list[str]:
    """What stands between brackets; nothing where they are not closed."""
    inner = brackets[1:-1] if brackets.endswith("]") else ""
    return [word for word in re.split(r"[\s,]+", inner) if word]


def ineffective(source: Source) -> Iterator[tuple[int, str]]:
    """Lines of comments that silence nothing, because what they name is no rule."""
    if "gradlab" not in source.text:
        return
    for number, comment in comments(source.text):
        match = IGNORED.search(comment)
        if match is None or match[1] is None:
            continue
        if not words(match[1]):
            fault = "names no rule" if match[1].endswith("]") else "is not closed"
            yield number, f"`{match[0].strip()}` {fault}, and silences nothing: write ignore[GL101], or ignore"
        for word in words(match[1]):
            if find_code(word) is None:
                more = f" (did you mean {meant}?)" if (meant := suggest_code(word)) else ""
                yield number, f"ignore[{word}] silences nothing: no such rule{more}"


def comments(text: str) -> Iterator[tuple[int, str]]:
    """Comments with their lines; what only looks like a comment, in a string, is none."""
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.string
    except (tokenize.TokenError, SyntaxError):
        return
