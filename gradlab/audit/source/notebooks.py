"""Notebooks: their code cells as one text, IPython's own signs taken out line by line."""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gradlab.audit.source.files import Source

PYTHON = {
    "time",
    "timeit",
    "capture",
    "prun",
    "memit",
    "mprun",
    "lprun",
    "snakeviz",
    "heat",
    "debug",
    "python",
    "python3",
}
"""Cell magics whose cells are Python all the same."""
ASSIGNED = re.compile(r"^(\s*[\w.,\s\[\]'\"]+=\s*)(!|%\w).*$")
ASKED = re.compile(r"^\s*[\w.\[\]'\"()]+\?{1,2}\s*$")


def notebook(source: Source, text: str) -> None:
    lines: list[str] = []
    broken = 0
    try:
        data = json.loads(text)
        if (other := language(data)) not in ("", "python", "ipython"):
            source.notes.append((1, f"a notebook in {other}, passed over"))
            return
        for number, cell in code(data):
            if (body := python(cell)) is None:
                continue
            source.cells.append((number, len(lines) + 1))
            if not parses(body):
                broken += 1
                source.notes.append((len(lines) + 1, "this cell is not Python and was passed over"))
                body = [""] * len(body)
            lines += body
    except (ValueError, LookupError, AttributeError, TypeError, RecursionError):
        source.error = (1, 1, "not a notebook: its JSON is broken")
    if broken and broken == len(source.cells):
        source.error = (1, 1, "no cell of the notebook can be parsed")
    source.text = "\n".join(lines) + "\n"


def language(data: Any) -> str:
    """As its kernel is said to speak; nothing where that is not said."""
    about = data.get("metadata") or {}
    said = about.get("kernelspec", {}).get("language") or about.get("language_info", {}).get("name")
    return said.lower().rstrip("0123456789.") if isinstance(said, str) else ""


def code(data: Any) -> Iterator[tuple[int, str]]:
    """The code cells with their numbers, from 1 on; format 3 has them in worksheets."""
    cells = data["cells"] if "cells" in data else [c for sheet in data.get("worksheets", []) for c in sheet["cells"]]
    for number, cell in enumerate(cells, 1):
        if isinstance(cell, dict) and cell.get("cell_type") == "code":
            text = cell.get("source", cell.get("input")) or ""
            yield number, text if isinstance(text, str) else "".join(text)


def python(text: str) -> list[str] | None:
    """The lines of a cell, with `pass` for what is IPython's; None for a cell in another language."""
    lines, going = text.split("\n"), False
    found: list[str] = []
    if parses(lines):
        return lines
    for line in lines:
        bare = line.lstrip()
        if bare.startswith("%%"):
            if re.split(r"\W", bare[2:], maxsplit=1)[0] not in PYTHON:
                return None
            line = "pass"
        elif going:
            line, going = "", bare.rstrip().endswith("\\")
        elif bare.startswith(("%", "!", "?")) or ASKED.match(line):
            going = bare.rstrip().endswith("\\")
            line = line[: len(line) - len(bare)] + "pass"
        elif (match := ASSIGNED.match(line)) is not None and "==" not in match[1]:
            going = bare.rstrip().endswith("\\")
            line = match[1] + "None"
        found.append(line)
    return found


def parses(lines: list[str]) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse("\n".join(lines))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True
