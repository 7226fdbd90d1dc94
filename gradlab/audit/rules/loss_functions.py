"""Functions named as a loss: what they receive, and what in them may be zero."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator

from gradlab.audit.knowledge.known_names import MODULES
from gradlab.audit.source.project import Module
from gradlab.audit.source.syntax import dotted, walk

LOSS = re.compile(r"(^|_)(loss|criterion)|Loss$", re.I)
OTHERS = {"np", "numpy", "tf", "jnp", "jax", "K", "mx", "paddle"}
"""Losses of these packages have other gradients, or none."""
COUNT = re.compile(
    r"(^|_)(n|b|k|t|eps|epsilon|num|count|size|len|length|total|temp|temperature|tau|sigma|std|var|scale|weight|weights|alpha|beta|"
    r"gamma|lr|rate|momentum|decay|epochs?|norm|max|dim|batch|world|sum|denom|mask|valid|steps|avg|factor|numel|margin|delta|smooth|"
    r"log_var)(_|$)|batch|size|num|len|temp",
    re.I,
)


@functools.lru_cache(maxsize=1)
def losses(module: Module) -> list[ast.FunctionDef]:
    return list(functions(module))


def functions(module: Module) -> Iterator[ast.FunctionDef]:
    """Functions named as a loss, and the forward of classes named so."""
    if not re.search(r"def \w*(loss|criterion)|class \w*(Loss|Criterion)\b", module.source.text, re.I):
        return
    for node in module.source.nodes.of(ast.FunctionDef):
        if LOSS.search(node.name) and not re.search(r"log|plot|print|get|make|build|init", node.name):
            names = {part.id for part in walk(node) if isinstance(part, ast.Name)}
            if not names & OTHERS or names & {"torch", "F", "nn"}:
                yield node
    for one in module.source.nodes.of(ast.ClassDef):
        if re.search(r"Loss$|Criterion$", one.name):
            yield from (n for n in one.body if isinstance(n, ast.FunctionDef) and n.name == "forward")


def forwards(module: Module) -> Iterator[ast.FunctionDef]:
    """The forward passes of a file's networks, if it has no loop that shows what becomes of their results."""
    if "def forward" not in module.source.text or "backward" in module.source.text:
        return
    for one in module.source.nodes.of(ast.ClassDef):
        if any(MODULES.search(dotted(base)) for base in one.bases) and not re.search(r"Loss$|Criterion$", one.name):
            yield from (n for n in one.body if isinstance(n, ast.FunctionDef) and n.name == "forward")


GIVEN = re.compile(r"(^|_)(targets?|labels?|truth|true|gt)(_|$)", re.I)
"""Names of what a prediction is compared with: data, which has no gradient."""


def inputs(node: ast.FunctionDef) -> set[str]:
    """Parameters that may be predictions: without a default, and not numbers by their names or annotations."""
    plain = node.args.args[: len(node.args.args) - len(node.args.defaults)]
    others = [a for a in plain if a.arg not in ("self", "cls") and not COUNT.search(a.arg)]
    named = [a for a in others if not GIVEN.search(a.arg)]
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


def named_calls(node: ast.AST, name: str) -> Iterator[ast.Call]:
    """The calls of any function or method with a name."""
    for part in walk(node):
        if isinstance(part, ast.Call) and dotted(part.func).split(".")[-1] == name:
            yield part


def bare(node: ast.AST | None, names: set[str]) -> bool:
    """A parameter itself, a part of it, or 1 less it: nothing that keeps it away from zero."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub) and isinstance(node.left, ast.Constant):
        return bare(node.right, names)
    return isinstance(node, ast.Name) and node.id in names


def share(node: ast.AST | None, function: ast.FunctionDef, names: int = 9) -> bool:
    """softmax(x) or sigmoid(x), a part of it, or a name that is bound to it once: 0 is among what it may be.

    names: how many names it is followed through.
    """
    if isinstance(node, ast.Subscript):
        return share(node.value, function, names)
    if isinstance(node, ast.Name):
        made = [n.value for n in walk(function) if isinstance(n, ast.Assign) and dotted(n.targets[0]) == node.id]
        bound = len(made) == 1 and not isinstance(made[0], ast.Name)
        return bound and names > 0 and share(made[0], function, names - 1)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):  # a softmax written out
        return called(node.left, "exp") is not None and next(named_calls(node.right, "exp"), None) is not None
    if not isinstance(node, ast.Call):
        return False
    name = node.func.attr if isinstance(node.func, ast.Attribute) else dotted(node.func)
    if name in ("gather", "squeeze", "view", "reshape", "flatten") and isinstance(node.func, ast.Attribute):
        return share(node.func.value, function, names)
    return name in ("softmax", "sigmoid")


def called_on(function: ast.FunctionDef, name: str) -> bool:
    """The result is reduced as tensors are, so that the divisor is one too."""
    return (
        any(isinstance(n, ast.Attribute) and n.attr in ("mean", "sum", "pow", "abs") for n in walk(function))
        and list(inputs_in_order(function))[:2].count(name) > 0
    )


def inputs_in_order(function: ast.FunctionDef) -> Iterator[str]:
    yield from (a.arg for a in function.args.args if a.arg not in ("self", "cls"))


def averaged(node: ast.expr) -> bool:
    """The mean of squares over everything: 0 only where each one is."""
    if not isinstance(node, ast.Call):
        return False
    name = node.func.attr if isinstance(node.func, ast.Attribute) else dotted(node.func)
    if name in ("mean", "sum"):
        inner = node.args[1:] if dotted(getattr(node.func, "value", node)) == "torch" else node.args
        return not inner and not node.keywords
    return bool(re.search(r"mse", name, re.I))


def square(node: ast.expr) -> bool:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        return True
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr in ("clamp", "clamp_min", "relu"):  # clamped at 0 the derivative is infinite all the same
            lowest = [ast.unparse(k.value) for k in node.keywords if k.arg == "min"]
            return lowest in (["0"], ["0.0"]) and square(operand(node))
        if node.func.attr in ("pow", "square"):
            return True
        if node.func.attr in ("sum", "mean"):
            return square(operand(node))
    return False


def operand(node: ast.Call) -> ast.expr:
    """What a function or method of a tensor is applied to: x of torch.sum(x) or x.sum()."""
    assert isinstance(node.func, ast.Attribute)
    return node.args[0] if dotted(node.func.value) == "torch" and node.args else node.func.value
