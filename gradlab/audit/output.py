"""Findings as text, JSON, SARIF and GitHub's annotations; rules as a list and explained."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from gradlab.audit.finding import Finding
from gradlab.base.version import __version__
from gradlab.codes import CODES, Code, explain

COLOURS = {"error": "31", "warning": "33", "advice": "36"}


def coloured(out: TextIO) -> bool:
    """Whether an output shows colours."""
    return out is not None and out.isatty() and not os.environ.get("NO_COLOR")


def painted(text: str, code: str, colour: bool) -> str:
    """`code`: of ECMA-48."""
    return f"\033[{code}m{text}\033[0m" if colour else text


def text(findings: list[Finding], colour: bool) -> str:
    lines = []
    for f in findings:
        where = painted(f"{f.path}:{f.place}:", "1", colour)
        lines.append(f"{where} {painted(f.code, COLOURS[f.severity], colour)} {f.severity}: {f.message} [{f.name}]")
    counts = [
        f"{n} {word}{'s' if n != 1 and word != 'advice' else ''}"
        for word in ("error", "warning", "advice")
        if (n := sum(f.severity == word for f in findings))
    ]
    if findings:
        from gradlab.audit.fixes.registry import FIXES

        plain = sum(f.code in FIXES and not f.cell for f in findings)
        which = "whether --fix can fix 1 of them" if plain == 1 else f"which of {plain} --fix can fix"
        more = f"; --diff shows {which}" if plain else ""
        lines.append(f"Found {', '.join(counts)}; --explain CODE explains{more}.")
    else:
        lines.append("Nothing found.")
    return "\n".join(lines)


def as_json(findings: list[Finding], colour: bool = False) -> str:
    rows = [
        {
            "code": f.code,
            "name": f.name,
            "severity": f.severity,
            "message": f.message,
            "path": f.path,
            "cell": f.cell or None,
            "line": f.line,
            "column": f.column,
            "end_line": f.end_line,
            "end_column": f.end_column,
        }
        for f in findings
    ]
    return json.dumps(rows, indent=2)


def location(path: str) -> dict[str, str]:
    """A reference that viewers can follow: relative to the current folder, else the URI of the file."""
    from urllib.parse import quote

    absolute = Path(path).absolute()
    try:
        return {"uri": quote(absolute.relative_to(Path.cwd()).as_posix()), "uriBaseId": "%SRCROOT%"}
    except (ValueError, OSError):
        return {"uri": absolute.as_uri()}


def message(one: Finding) -> str:
    """Lines of a notebook's cell are no lines of its file: formats that know only those name the cell in words."""
    return f"{one.place}: {one.message}" if one.cell else one.message


def region(one: Finding) -> dict[str, int]:
    if one.cell:
        return {"startLine": 1}
    found = {"startLine": one.line, "startColumn": one.column}
    if (one.end_line, one.end_column) > (one.line, one.column):
        found |= {"endLine": one.end_line, "endColumn": one.end_column}
    return found


def sarif(findings: list[Finding], colour: bool = False) -> str:
    levels = {"error": "error", "warning": "warning", "advice": "note"}
    used = sorted({f.code for f in findings})
    results = [
        {
            "ruleId": f.code,
            "level": levels[f.severity],
            "message": {"text": message(f)},
            "locations": [
                {
                    "physicalLocation": {
                        "artifactLocation": location(f.path),
                        "region": region(f),
                    }
                }
            ],
        }
        for f in findings
    ]
    described = [
        {
            "id": code,
            "name": CODES[code].name,
            "shortDescription": {"text": CODES[code].message},
            "fullDescription": {"text": CODES[code].explanation},
            "help": {"text": f"{CODES[code].fix}:\n\n{CODES[code].example}"},
        }
        for code in used
    ]
    driver = {"name": "gradlab.audit", "semanticVersion": __version__, "rules": described}
    run = {"tool": {"driver": driver}, "results": results, "columnKind": "unicodeCodePoints"}
    schema = "https://json.schemastore.org/sarif-2.1.0.json"
    return json.dumps({"$schema": schema, "version": "2.1.0", "runs": [run]}, indent=2)


def escaped(text: str, more: str = "") -> str:
    for sign, code in (("%", "%25"), ("\r", "%0D"), ("\n", "%0A"), *(((":", "%3A"), (",", "%2C")) if more else ())):
        text = text.replace(sign, code)
    return text


def relative(path: str) -> str:
    from urllib.parse import unquote

    here = location(path)
    return unquote(here["uri"]) if "uriBaseId" in here else path


def github(findings: list[Finding], colour: bool = False) -> str:
    words = {"error": "error", "warning": "warning", "advice": "notice"}
    return "\n".join(
        f"::{words[f.severity]} title=gradlab ({f.code}),file={escaped(relative(f.path), 'all')},"
        f"{'line=1' if f.cell else f'line={f.line},col={f.column}'}::{escaped(message(f))}"
        for f in findings
    )


FORMATS: dict[str, Callable[[list[Finding], bool], str]] = {
    "text": text,
    "json": as_json,
    "sarif": sarif,
    "github": github,
}


def explanation(code: Code) -> str:
    """What `--explain` prints."""
    from gradlab.audit.fixes.registry import FIXES

    off = "" if code.default else f"\n\nOff unless selected: --select {code.code}."
    fix = "\n\n--fix fixes the plain cases; --diff shows them." if code.code in FIXES else ""
    return explain(code) + off + fix


def listed(code: Code, audited: bool) -> str:
    """A line of `--list`; audited: whether the audit finds it."""
    from gradlab.audit.fixes.registry import FIXES

    more = ("  (--fix)" if code.code in FIXES else "") + ("" if code.default else "  (off unless selected)")
    here = more if audited else "  (seen at run time, by gradlab.watch)"
    return f"{code.code}  {code.severity:8} {code.name}{here}"
