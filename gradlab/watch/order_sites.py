"""The line that decides when a call of an update is made: that of the call, or of a function that does nothing else."""

from __future__ import annotations

import ast
import functools
import re
import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

from gradlab.watch.call_site import LIBRARY, USER, CallSite, call_site, origin
from gradlab.watch.source_lines import name_of, nodes_in, statements, walk
from gradlab.watch.variable_calls import up_to_variable

CALLS = {"backward", "zero_grad", "unscale_", "clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_"}
"""Calls of an update whose order matters. A step is told from others by what steps."""
NONE = set[str]()
GRADIENT = re.compile(r"(?!requires_)(\w+_)?(grads?|gradients?)")
KNOWN: dict[tuple[int, int], tuple[CodeType, bool]] = {}
"""id of a code object and line -> the code, and whether its function decides; a code's own hash takes longer."""


def order_site() -> CallSite | None:
    """Of the user's functions that are running, and call each other by name, the innermost one whose text makes other
    calls of an update too; the innermost one of all if none does."""
    site = call_site()
    if site is None:
        return None
    key = id(site[0]), site[1]
    if key not in KNOWN:
        KNOWN[key] = site[0], deciding_site((site,)) is not None
    if KNOWN[key][1]:
        return site
    frame: FrameType | None = sys._getframe(1)
    stack: list[CallSite] = []
    while frame is not None:
        where = origin(frame.f_code.co_filename)
        if where == USER:
            stack.append((frame.f_code, frame.f_lineno))
        elif where == LIBRARY and stack:
            break
        frame = frame.f_back
    return deciding_site(tuple(stack)) or site


@functools.lru_cache(maxsize=1000)
def deciding_site(stack: tuple[CallSite, ...]) -> CallSite | None:
    """stack: running functions, the innermost first."""
    if stack and does_more(stack[0]):
        return stack[0]
    whole, stack = stack, up_to_variable(stack)
    own = (
        {kind for node in calls_of(stack[0]) if is_at(node, stack[0][1]) for kind in kinds_of(node)} if stack else set()
    )
    for site in stack:
        functions = kinds_of_functions(site[0].co_filename)
        kinds = {kind for node in calls_of(site) for kind in kinds_of(node) or functions.get(name_of(node), NONE)}
        if kinds - own or len(own) > 1:
            return site
    return None if stack == whole else stack[-1]


@functools.lru_cache(maxsize=100)
def writing_line(site: CallSite | None, writes: Callable[[Any], bool]) -> CallSite | None:
    """The only line in a file that writes to gradients in such a way; that of the only call of its function, if that
    does nothing else. None where there are none, or several."""
    nodes = nodes_in(site[0].co_filename) if site is not None else ()
    found = [node.lineno for node in nodes if writes(node)]
    if site is None or len(found) != 1:
        return None
    functions = [n for n in nodes if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef)) and is_at(n, found[0])]
    apart = bool(functions) and not is_at(functions[-1], site[1])
    apart = apart and not any(kinds_of(n) for n in walk(functions[-1].body) if isinstance(n, ast.Call))
    calls = [n.lineno for n in nodes if apart and isinstance(n, ast.Call) and name_of(n) == functions[-1].name]
    return site[0], calls[0] if len(calls) == 1 else found[0]


def is_zeroed(node: Any) -> bool:
    """Whether it is `p.grad = None` or `p.grad.zero_()`, or the same of any other name of a gradient."""
    if isinstance(node, ast.Assign) and getattr(node.value, "value", 0) is None:
        return any(is_gradient(target) for target in node.targets)
    return isinstance(node, ast.Call) and name_of(node) == "zero_" and is_gradient(node.func)


def is_scaled(node: Any) -> bool:
    """Whether it is `p.grad /= n` or `p.grad.mul_(1 / n)`, or the same of any other name of a gradient."""
    if isinstance(node, ast.AugAssign) and isinstance(node.op, (ast.Div, ast.Mult)):
        return is_gradient(node.target)
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.BinOp):
        return any(is_gradient(target) for target in node.targets)
    if isinstance(node, ast.Call) and name_of(node) in ("_foreach_mul_", "_foreach_div_"):
        return bool(node.args) and is_gradient(node.args[0])
    return isinstance(node, ast.Call) and name_of(node) in ("mul_", "div_") and is_gradient(node.func)


def is_gradient(node: ast.AST) -> bool:
    """Whether a name of a gradient is among its names: `p.grad`, and neither `grad_clip` nor `requires_grad`."""
    return any(GRADIENT.fullmatch(word) for word in re.findall(r"\w+", ast.unparse(node)))


def does_more(site: CallSite) -> bool:
    """Whether a function also makes calls, in statements of their own, that are none of an update."""
    functions = kinds_of_functions(site[0].co_filename)
    for statement in walk(statements(site[0])):
        if isinstance(statement, (ast.Expr, ast.Assign, ast.AugAssign)):
            calls = [node for node in ast.walk(statement.value) if isinstance(node, ast.Call)]
            if calls and not any(kinds_of(node) or name_of(node) in functions for node in calls):
                return True
    return False


def calls_of(site: CallSite) -> list[ast.Call]:
    return [node for node in walk(statements(site[0])) if isinstance(node, ast.Call)]


def is_at(node: Any, number: int) -> bool:
    return bool(node.lineno <= number <= (node.end_lineno or 0))


def kinds_of(node: ast.Call) -> set[str]:
    """Which call of an update it is by its name, if any."""
    name = name_of(node)
    return {name} if name in CALLS else {ast.unparse(node.func)} if name == "step" else set()


@functools.lru_cache(maxsize=100)
def kinds_of_functions(file: str) -> dict[str, set[str]]:
    """Name of a function or method in a file -> the calls of an update that it makes, by others of the file too."""
    nodes = nodes_in(file)
    functions = [n for n in nodes if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))]
    calls = {f: [n for n in walk(f.body) if isinstance(n, ast.Call)] for f in functions}
    found = {f.name: set[str]() for f in functions}
    for _ in range(3):  # what is called by what is called
        for f, made in calls.items():
            for node in made:
                found[f.name] |= kinds_of(node) or found.get(name_of(node), NONE)
    return {name: kinds for name, kinds in found.items() if kinds}
