"""What the text of a loop says of a value that a line computes: whether it may be used under a condition."""

from __future__ import annotations

import ast
import functools

from gradlab.watch.call_site import CallSite
from gradlab.watch.source_lines import statements, walk

READS = {"float", "print", "str", "item", "detach"}
"""Functions that do nothing with a value but to show it."""
CHOICES = (ast.If, ast.IfExp, ast.BoolOp, ast.Return, ast.Yield, ast.Lambda, ast.Match)


@functools.cache
def may_be_used_later(site: CallSite | None) -> bool:
    """Whether what a line assigns is read under a condition, returned, or passed on: by a schedule of the loss that has
    not begun. Also where the text does not say."""
    if site is None:
        return True
    code, number = site
    nodes = list(walk(statements(code)))
    shown = {id(n.value) for n in nodes if isinstance(n, ast.Attribute) and n.attr in READS}
    made = [n for n in nodes if isinstance(n, (ast.Assign, ast.AnnAssign, ast.AugAssign)) and is_at(n, number)]
    targets = [t for n in made for t in (n.targets if isinstance(n, ast.Assign) else [n.target])]
    names = {each.id for t in targets for each in ast.walk(t) if isinstance(each, ast.Name)}
    if not names or any(isinstance(each, ast.Attribute) for t in targets for each in ast.walk(t)):
        return True
    for node in nodes:
        if isinstance(node, CHOICES):
            parts = [*node.body, *node.orelse] if isinstance(node, ast.If) else [node]
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") not in READS:
            parts = [each for each in [*node.args, *(k.value for k in node.keywords)] if isinstance(each, ast.Name)]
        else:
            continue
        if any(is_read(each, names) and id(each) not in shown for part in parts for each in ast.walk(part)):
            return True
    return False


def is_at(node: ast.stmt, number: int) -> bool:
    return node.lineno <= number <= (node.end_lineno or 0)


def is_read(node: ast.AST, names: set[str]) -> bool:
    return isinstance(node, ast.Name) and node.id in names and isinstance(node.ctx, ast.Load)
