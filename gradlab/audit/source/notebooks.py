"""Notebooks: their code cells as one text, with IPython's own syntax replaced line by line."""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

PYTHON_MAGICS = {
    *("time", "timeit", "capture", "prun", "memit", "mprun", "lprun", "snakeviz", "heat", "debug", "python", "python3")
}
"""Cell magics whose cells are Python."""
ASSIGNED = re.compile(r"^(\s*[\w.,\s\[\]'\"]+=\s*)(!|%\w).*$")
HELP = re.compile(r"^\s*[\w.\[\]'\"()]+\?{1,2}\s*$")


@dataclass
class NotebookCode:
    text: str = ""
    cells: list[tuple[int, int]] = field(default_factory=list)  # number and first line of each cell
    notes: list[tuple[int, str]] = field(default_factory=list)  # what was passed over, by line
    error: str = ""


def code_of(text: str) -> NotebookCode:
    """The code of a notebook, given as JSON."""
    code = NotebookCode()
    lines: list[str] = []
    broken = 0
    try:
        data = json.loads(text)
        if (other := language(data)) not in ("", "python", "ipython"):
            code.notes.append((1, f"a notebook in {other}, passed over"))
            return code
        for number, cell in code_cells(data):
            if (body := python(cell)) is None:
                continue
            code.cells.append((number, len(lines) + 1))
            if not parses(body):
                broken += 1
                code.notes.append((len(lines) + 1, "this cell is not Python and was passed over"))
                body = [""] * len(body)
            lines += body
    except (ValueError, LookupError, AttributeError, TypeError, RecursionError):
        code.error = "not a notebook: its JSON is broken"
    if broken and broken == len(code.cells):
        code.error = "no cell of the notebook can be parsed"
    code.text = "\n".join(lines) + "\n"
    return code


def language(data: Any) -> str:
    """The language of the kernel; the empty string where the notebook names none."""
    about = data.get("metadata") or {}
    name = about.get("kernelspec", {}).get("language") or about.get("language_info", {}).get("name")
    return name.lower().rstrip("0123456789.") if isinstance(name, str) else ""


def code_cells(data: Any) -> Iterator[tuple[int, str]]:
    """The code cells with their numbers, from 1 on; format 3 has them in worksheets."""
    cells = data["cells"] if "cells" in data else [c for sheet in data.get("worksheets", []) for c in sheet["cells"]]
    for number, cell in enumerate(cells, 1):
        if isinstance(cell, dict) and cell.get("cell_type") == "code":
            text = cell.get("source", cell.get("input")) or ""
            yield number, text if isinstance(text, str) else "".join(text)


def python(text: str) -> list[str] | None:
    """The lines of a cell, with `pass` in place of IPython's commands; None for a cell in another language."""
    lines, continued = text.split("\n"), False
    found: list[str] = []
    if parses(lines):
        return lines
    for line in lines:
        bare = line.lstrip()
        if bare.startswith("%%"):
            if re.split(r"\W", bare[2:], maxsplit=1)[0] not in PYTHON_MAGICS:
                return None
            line = "pass"
        elif continued:
            line, continued = "", bare.rstrip().endswith("\\")
        elif bare.startswith(("%", "!", "?")) or HELP.match(line):
            continued = bare.rstrip().endswith("\\")
            line = line[: len(line) - len(bare)] + "pass"
        elif (match := ASSIGNED.match(line)) is not None and "==" not in match[1]:
            continued = bare.rstrip().endswith("\\")
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
