"""Losses of a list of micro-batches, each divided by its own number of tokens and by the length of the list."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from gradlab.audit.rules.registry import text_rule
from gradlab.audit.rules.unstable_losses import bindings
from gradlab.audit.source.project import Module
from gradlab.audit.source.syntax import called_name, dotted, walk

TOKENS = re.compile(r"(^|[._])(n|num|number_of|count)_?\w*(words|tokens|targets|labels)$", re.I)
"""Names of how many targets there are, which differs from one micro-batch to the next."""


@text_rule("GL805")
def own_count_and_list(module: Module) -> Iterator[ast.AST]:
    if "backward(" not in module.source.text:
        return
    for loop in module.source.nodes.of(ast.For):
        over = loop.iter.args[0] if called_name(loop.iter) == "enumerate" and loop.iter.args else loop.iter  # type: ignore[attr-defined]
        number = f"len({dotted(over)})" if dotted(over) else ""
        if not number or not any(isinstance(n, ast.Call) and ast.unparse(n) == number for n in walk(loop)):
            continue
        stored = {n.id for n in walk(loop) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        going = {name for node in walk(loop) if isinstance(node, ast.Call) for name in backward_of(node)}
        for name, value in (one for node in walk(loop) for one in bindings(node)):
            parts = divisors(value)
            own = [one for one in parts if TOKENS.search(dotted(one)) and dotted(one).split(".")[0] in stored]
            if name in going and own and number in map(ast.unparse, parts):
                yield value


def backward_of(node: ast.Call) -> list[str]:
    """The loss of `loss.backward()`, or of `engine.backward(loss)`."""
    func = node.func if isinstance(node.func, ast.Attribute) and node.func.attr == "backward" else None
    return [dotted(one) for one in (node.args[:1] or [func.value])] if func is not None else []


def divisors(node: ast.expr) -> list[ast.expr]:
    """What a quotient is divided by, one after the other or at once."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Div):
        return []
    sides: list[ast.expr] = [node.right]
    found: list[ast.expr] = []
    while sides:
        one = sides.pop()
        product = isinstance(one, ast.BinOp) and isinstance(one.op, ast.Mult)
        sides += [one.left, one.right] if product else []  # type: ignore[attr-defined]
        found += [] if product else [one]
    return [*divisors(node.left), *found]
