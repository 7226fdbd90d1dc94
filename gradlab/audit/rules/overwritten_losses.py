"""Losses of a loop that are overwritten in each iteration, so that only the last one goes backward."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping

from gradlab.audit.rules.registry import text_rule
from gradlab.audit.source.project import Module
from gradlab.audit.source.syntax import called_name, walk

LOSS = re.compile(r"loss|criterion|entropy|mse|bce|nll", re.I)
"""Names of losses, and of functions that compute them."""
BLOCKS: tuple[type[ast.For | ast.With | ast.If | ast.FunctionDef], ...] = (ast.For, ast.With, ast.If, ast.FunctionDef)
LEAVING = (ast.Break, ast.Return, ast.Yield, ast.YieldFrom, ast.Await)


@text_rule("GL717")
def overwritten(module: Module) -> Iterator[ast.AST]:
    if "backward" not in module.source.text:
        return
    nodes: list[ast.For | ast.With | ast.If | ast.FunctionDef] = [
        node for kind in BLOCKS for node in module.source.nodes.of(kind)
    ]
    blocks = [(node, block) for node in nodes for block in (node.body, getattr(node, "orelse", []))]
    around = {id(one): (node, block[i + 1 :]) for node, block in blocks for i, one in enumerate(block)}
    for node, block in blocks:
        yield from in_block(block, [*behind(node, around)])


def behind(node: ast.stmt, around: Mapping[int, tuple[ast.stmt, list[ast.stmt]]]) -> Iterator[ast.stmt]:
    """The statements after an `if` or a `with`, in the same iteration of the loop around it."""
    while isinstance(node, (ast.If, ast.With)) and id(node) in around:
        node, following = around[id(node)]
        yield from following


def is_backward(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "backward"


def in_block(block: list[ast.stmt], after: list[ast.stmt]) -> Iterator[ast.AST]:
    for i, loop in enumerate(block):
        if isinstance(loop, ast.For) and not any(isinstance(part, LEAVING) or is_backward(part) for part in walk(loop)):
            for one in statements(loop.body):
                name = stored_name(one)
                if (
                    name
                    and LOSS.search(name)
                    and thrown_away(one, name, loop)
                    and goes_on(name, [*block[i + 1 :], *after])
                ):
                    yield one


def statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Those under no condition."""
    for one in body:
        yield from statements(one.body) if isinstance(one, ast.With) else (one,)


def stored_name(node: ast.stmt) -> str:
    """The one name that an assignment binds."""
    if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
        return node.targets[0].id
    return ""


def loaded(node: ast.AST) -> set[str]:
    return {part.id for part in walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load)}


def stored(node: ast.AST) -> set[str]:
    return {part.id for part in walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)}


def thrown_away(made: ast.stmt, name: str, loop: ast.For) -> bool:
    """Whether a loss is computed from this iteration's item alone, and nothing else in the iteration uses it."""
    assert isinstance(made, ast.Assign)
    if not any(isinstance(part, ast.Call) and LOSS.search(called_name(part)) for part in walk(made.value)):
        return False
    if any(name in loaded(one) for one in loop.body):
        return False
    own, fresh, needed = stored(loop), stored(loop.target), loaded(made.value)
    for one in statements(loop.body):
        if one is made:
            break
        if (bound := stored_name(one)) and not loaded(one) & own - fresh and bound not in loaded(one):
            fresh |= {bound}
            needed |= loaded(one) if bound in needed else set()
    return not loaded(made.value) & own - fresh and bool(needed & stored(loop.target))


def goes_on(name: str, rest: list[ast.stmt]) -> bool:
    """Whether the last one goes backward, or into another loss."""
    for one in rest:
        if isinstance(one, ast.AugAssign) and stored(one.target) == {name}:
            continue  # times a weight: it is the same loss
        if name in loaded(one):
            whole = isinstance(one, ast.Expr) and is_backward(one.value)
            target = (stored(one.target) or {""}).pop() if isinstance(one, ast.AugAssign) else stored_name(one)
            plain = not any(isinstance(part, ast.Attribute) and part.attr in ("item", "data") for part in walk(one))
            return whole or (bool(LOSS.search(target)) and plain)
        if name in stored(one):
            return False
    return False
