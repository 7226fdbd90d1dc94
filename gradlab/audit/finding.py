"""A mistake that the audit found, and where it is."""

from __future__ import annotations

import ast
import os
from dataclasses import dataclass, replace
from pathlib import Path

Key = tuple[str, int, int, int, str]


def position(cell: int, line: int) -> str:
    return f"cell {cell}:{line}" if cell else str(line)


@dataclass
class Finding:
    code: str
    severity: str
    message: str
    path: str
    line: int
    column: int
    end_line: int = 0
    end_column: int = 0
    name: str = ""
    cell: int = 0
    """Of a notebook, whose lines are counted in each cell; 0 of a file."""

    @property
    def key(self) -> Key:
        return (self.path, self.cell, self.line, self.column, self.code)

    @property
    def place(self) -> str:
        return f"{position(self.cell, self.line)}:{self.column}"


def finding(code: str, severity: str, message: str, path: str, node: ast.AST, name: str = "") -> Finding:
    """A finding at a node of the syntax tree; columns count bytes of UTF-8."""
    line, column = getattr(node, "lineno", 1), getattr(node, "col_offset", 0) + 1
    end_line = getattr(node, "end_lineno", None) or line
    end_column = (getattr(node, "end_col_offset", None) or column - 1) + 1
    return Finding(code, severity, message, path, line, column, end_line, end_column, name=name)


def beside(one: Finding, given: Path) -> Finding:
    """A finding in an imported file, its path absolute or relative as the audited file's is."""
    return one if given.is_absolute() else replace(one, path=os.path.relpath(one.path))


def characters(lines: list[str], line: int, column: int) -> int:
    """A column counted in characters; the parser counts bytes of UTF-8."""
    if not 0 < line <= len(lines) or lines[line - 1].isascii():
        return column
    return len(lines[line - 1].encode("utf-8", "replace")[: column - 1].decode("utf-8", "ignore")) + 1
