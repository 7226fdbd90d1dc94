"""A program's text as lines with their ends, its statements, and edits that change nothing else."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from gradlab.audit.source.syntax import dotted

LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
SIMPLE = (ast.Expr, ast.Assign, ast.AugAssign, ast.AnnAssign)
Place = tuple[list[ast.stmt], int]
"""A block of statements, and which of them."""


@dataclass(frozen=True)
class SourceLines:
    lines: list[str]
    tree: ast.Module

    @property
    def end(self) -> str:
        """The line ending."""
        return next((ending(line) for line in self.lines if ending(line)), "\n")

    def column(self, line: int, offset: int) -> int:
        """A column in characters from 0 on; the parser counts bytes of UTF-8."""
        return len(self.lines[line - 1].encode("utf-8", "surrogatepass")[:offset].decode("utf-8", "ignore"))

    def offset(self, line: int, column: int) -> int:
        """A byte of UTF-8 from 0 on, of a column in characters from 1 on."""
        return len(self.lines[line - 1][: column - 1].encode("utf-8", "surrogatepass"))

    def segment(self, node: ast.expr) -> str:
        return ast.get_source_segment("".join(plain(line) + "\n" for line in self.lines), node) or ast.unparse(node)

    def replaced(self, changes: list[tuple[int, int, int, str]]) -> list[str]:
        """New text for parts of lines: line, first byte, last byte, text."""
        lines = list(self.lines)
        for line, first, last, text in sorted(changes, reverse=True):
            one, two = self.column(line, first), self.column(line, last)
            lines[line - 1] = lines[line - 1][:one] + text + lines[line - 1][two:]
        return lines

    def moved(self, node: ast.stmt, to: int, more: tuple[str, ...] = ()) -> list[str]:
        """A statement's lines before line `to`, after some more lines of the same indentation."""
        first, last = node.lineno - 1, node.end_lineno or node.lineno
        taken = [*(self.indented(node, text) for text in more), *self.lines[first:last]]
        rest = [*self.lines[:first], *[""] * (last - first), *self.lines[last:]]
        return self.closed([*rest[: to - 1], *taken, *rest[to - 1 :]])

    def inserted(self, to: int, like: ast.stmt, text: str) -> list[str]:
        """A new line before line `to`, indented like a statement."""
        return self.closed([*self.lines[: to - 1], self.indented(like, text), *self.lines[to - 1 :]])

    def indented(self, node: ast.stmt, text: str) -> str:
        return self.lines[node.lineno - 1][: self.column(node.lineno, node.col_offset)] + text + self.end

    def closed(self, lines: list[str]) -> list[str]:
        """Every line has an ending; the last one only if it had one."""
        kept = [line for line in lines if line]
        kept = [line if ending(line) else line + self.end for line in kept]
        if kept and self.lines and not ending(self.lines[-1]):
            kept[-1] = plain(kept[-1])
        return kept

    def alone(self, node: ast.stmt) -> bool:
        """Whether a statement has its lines for itself, but for a comment."""
        first, last = self.lines[node.lineno - 1], self.lines[(node.end_lineno or node.lineno) - 1]
        after = last[self.column(node.end_lineno or node.lineno, node.end_col_offset or 0) :].strip()
        before = self.lines[node.lineno - 2] if node.lineno > 1 else ""
        return (
            not first[: self.column(node.lineno, node.col_offset)].strip()
            and (not after or after.startswith("#"))
            and not plain(before).endswith("\\")
        )

    def places(self, line: int, column: int) -> list[Place]:
        """The statements around a position, outermost first, each as its block and its index in it."""
        found: list[Place] = []
        blocks = list(below(self.tree))
        while blocks:
            block = blocks.pop()
            for i, node in enumerate(block):
                if (node.lineno, node.col_offset) <= (line, column) < (node.end_lineno or 0, node.end_col_offset or 0):
                    found.append((block, i))
                    blocks = list(below(node))
                    break
        return found


def below(node: ast.AST) -> Iterator[list[ast.stmt]]:
    for name in ("body", "orelse", "finalbody"):
        block = getattr(node, name, None)
        if isinstance(block, list) and block:
            yield block
    for part in [*getattr(node, "handlers", []), *getattr(node, "cases", [])]:
        yield part.body


def split(text: str) -> list[str]:
    """Lines as the parser counts them: only CR and LF end one."""
    return LINE.findall(text)


def ending(line: str) -> str:
    return line[len(plain(line)) :]


def plain(line: str) -> str:
    return line.rstrip("\r\n")


def called(node: ast.stmt, *names: str) -> ast.Call | None:
    """The call of a method with one of these names that a simple statement is, or assigns."""
    value = node.value if isinstance(node, (ast.Expr, ast.Assign)) else None
    named = isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in names
    return value if named and isinstance(value, ast.Call) else None


def read(node: ast.AST) -> set[str]:
    return {
        dotted(n) for n in ast.walk(node) if isinstance(n, (ast.Name, ast.Attribute)) and isinstance(n.ctx, ast.Load)
    }


def bound(node: ast.AST) -> set[str]:
    return {
        dotted(n) for n in ast.walk(node) if isinstance(n, (ast.Name, ast.Attribute)) and isinstance(n.ctx, ast.Store)
    }


def apart(node: ast.stmt, others: list[ast.stmt]) -> bool:
    """Whether the others are simple, do not bind what this one reads, and neither read nor bind what it binds."""
    return all(
        isinstance(other, SIMPLE)
        and not bound(node) & (read(other) | bound(other))
        and not bound(other) & read(node)
        and not any(isinstance(n, (ast.NamedExpr, ast.Await, ast.Yield)) for n in ast.walk(other))
        for other in others
    )
