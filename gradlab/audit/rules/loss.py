"""Losses that leave the numbers by themselves, and losses kept with their graphs."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from gradlab.audit.known import dotted
from gradlab.audit.project import Module
from gradlab.audit.rules import Hit, rule
from gradlab.audit.trace import Run
from gradlab.audit.tree import Loop
from gradlab.audit.values import Value
from gradlab.audit.walking import walk

LOSS = re.compile(r"(^|_)(loss|criterion)|Loss$", re.I)
COUNT = re.compile(
    r"(^|_)(n|b|k|t|eps|epsilon|num|count|size|len|length|total|temp|temperature|tau|sigma|std|var|scale|weight|weights|alpha|beta|"
    r"gamma|norm|max|dim|batch|world|sum|denom|mask|valid|steps|avg|factor|numel|margin|delta|smooth|log_var)(_|$)|batch|size|num|len|temp",
    re.I,
)


def losses(module: Module) -> Iterator[ast.FunctionDef]:
    """Functions named as a loss, and the forward of classes named so."""
    for node in module.source.nodes.of(ast.FunctionDef):
        if LOSS.search(node.name) and not re.search(r"log|plot|print|get|make|build|init", node.name):
            yield node
    for one in module.source.nodes.of(ast.ClassDef):
        if re.search(r"Loss$|Criterion$", one.name):
            yield from (n for n in one.body if isinstance(n, ast.FunctionDef) and n.name == "forward")


def inputs(node: ast.FunctionDef) -> set[str]:
    """Parameters that can be predictions: without a default, not a number by their name or annotation."""
    plain = node.args.args[: len(node.args.args) - len(node.args.defaults)]
    named = [a for a in plain if a.arg not in ("self", "cls") and not COUNT.search(a.arg)]
    found = {a.arg for a in named if a.annotation is None or "Tensor" in ast.unparse(a.annotation)}
    changed = {t.id for n in walk(node) if isinstance(n, ast.Assign) for t in n.targets if isinstance(t, ast.Name)}
    return found - changed


def called(node: ast.AST, name: str) -> ast.expr | None:
    """The argument of torch.<name>(x) or x.<name>()."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == name:
        if dotted(node.func.value) == "torch":
            return node.args[0] if node.args else None
        return node.func.value if not node.args else None
    return None


def bare(node: ast.AST | None, names: set[str]) -> bool:
    """A parameter itself, a part of it, or 1 less it: nothing that keeps it away from zero."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub) and isinstance(node.left, ast.Constant):
        return bare(node.right, names)
    return isinstance(node, ast.Name) and node.id in names


@rule("GL601", on="text")
def log(module: Module) -> Iterator[ast.AST]:
    for function in losses(module):
        names = inputs(function)
        for node in walk(function):
            if bare(called(node, "log"), names):
                yield node


@rule("GL602", on="text")
def division(module: Module) -> Iterator[ast.AST]:
    for function in losses(module):
        names = inputs(function)
        for node in walk(function):
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and isinstance(node.right, ast.Name):
                if node.right.id in names and called_on(function, node.right.id):
                    yield node


def called_on(function: ast.FunctionDef, name: str) -> bool:
    """The result is reduced as tensors are, so that the divisor is one too."""
    return (
        any(isinstance(n, ast.Attribute) and n.attr in ("mean", "sum", "pow", "abs") for n in walk(function))
        and list(inputs_in_order(function))[:2].count(name) > 0
    )


def inputs_in_order(function: ast.FunctionDef) -> Iterator[str]:
    yield from (a.arg for a in function.args.args if a.arg not in ("self", "cls"))


@rule("GL603", on="text")
def sqrt(module: Module) -> Iterator[ast.AST]:
    for function in losses(module):
        for node in walk(function):
            inner = called(node, "sqrt")
            if inner is not None and (bare(inner, inputs(function)) or square(inner)):
                yield node


def square(node: ast.expr) -> bool:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        return True
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr in ("clamp", "clamp_min", "relu"):  # clamped at 0 the derivative is infinite all the same
            lowest = [ast.unparse(k.value) for k in node.keywords if k.arg == "min"]
            inner = node.args[0] if dotted(node.func.value) == "torch" and node.args else node.func.value
            return lowest in (["0"], ["0.0"]) and square(inner)
        if node.func.attr in ("pow", "square"):
            return True
        if node.func.attr in ("sum", "mean"):
            return square(node.func.value)
    return False


@rule("GL604", on="text")
def exp(module: Module) -> Iterator[ast.AST]:
    for function in losses(module):
        names = {
            n for n in inputs(function) if not re.search(r"log_?(var|std|sigma|p|prob|scale)|var|sigma|std", n, re.I)
        }
        for node in walk(function):
            if bare(called(node, "exp"), names) and isinstance(called(node, "exp"), (ast.Name, ast.Subscript)):
                yield node


@rule("GL605")
def kept(run: Run) -> Iterator[Hit]:
    unit = run.unit
    if unit.loop is None:
        return
    marks = frozenset().union(*(roots(e.value) for e in [*unit.events, *unit.after] if e.kind == "backward"))
    for keep in run.of("keep"):
        value = keep.event.value
        if keep.event.data["mark"] in marks or keep.event.data["since"] >= unit.birth:
            continue  # it goes backward itself, or is begun anew for each update
        if value is None or reset(unit.loop, keep.event.data["into"], {id(e.node) for e in unit.events}):
            continue
        known = value.data.get("source") == "criterion" and not value.data.get("guessed")
        for backward in run.of("backward"):
            shared = roots(value) & roots(backward.event.value)
            if backward.k != keep.k or not shared or not (known or shared == roots(value)):
                continue
            if keep.event.data["named"] or value is backward.event.value or value.data.get("source") != "model":
                yield Hit(keep, (backward,))
                break


def roots(value: Value | None) -> frozenset:
    return value.data.get("roots", frozenset()) if value is not None else frozenset()


def reset(loop: Loop, into: str, acting: set[int]) -> bool:
    """Whether a sum is begun anew in each turn, or where the optimizer steps."""
    for part in walk(loop.node):
        bodies = [getattr(part, "body", None), getattr(part, "orelse", None)]
        for body in bodies:
            if not isinstance(body, list):
                continue
            anew = any(isinstance(n, ast.Assign) and into in [dotted(t) for t in n.targets] for n in body)
            if anew and (part is loop.node or any(id(n) in acting for statement in body for n in walk(statement))):
                return True
    return False
