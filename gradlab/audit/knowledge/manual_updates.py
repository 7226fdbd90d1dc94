"""Weights that a program updates without an optimizer, `w -= rate * w.grad`, and gradients that it assigns."""

from __future__ import annotations

import ast
from functools import lru_cache

from gradlab.audit.knowledge.known_names import OPTIMIZER
from gradlab.audit.source.syntax import called_name, dotted, walk
from gradlab.audit.trace.engine import Engine
from gradlab.audit.trace.values import Value


def weights(node: ast.expr) -> ast.expr:
    """The tensor whose `.data` this is, or the expression itself."""
    return node.value if isinstance(node, ast.Attribute) and node.attr == "data" else node


def weight_name(node: ast.expr) -> str:
    """The dotted name of a tensor, without `.data`."""
    return dotted(weights(node))


def minus(parts: list[ast.expr]) -> bool:
    return any(isinstance(p, ast.UnaryOp) and isinstance(p.op, ast.USub) for part in parts for p in walk(part))


@lru_cache(maxsize=1000)
def descending(scope: ast.AST) -> frozenset[str]:
    """The names that move against their own gradients somewhere in a function, or at the top of a file."""
    found = set()
    for node in walk(scope):
        target: ast.expr | None = None
        parts: list[ast.expr] = []
        down = False
        if isinstance(node, ast.AugAssign):
            target, parts = node.target, [node.value]
            down = isinstance(node.op, ast.Sub) or minus(parts)
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.BinOp):
            target, parts = node.targets[0], [node.value]
            down = isinstance(node.value.op, ast.Sub) and isinstance(target, ast.Attribute)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("sub_", "add_"):
            target, parts = node.func.value, [*node.args, *(k.value for k in node.keywords)]
            down = node.func.attr == "sub_" or minus(parts)
        name = weight_name(target) if target is not None and down else ""
        inner = [p for part in parts for p in walk(part) if isinstance(p, ast.Attribute) and p.attr == "grad"]
        if name and name in [weight_name(p.value) for p in inner]:
            found.add(name)
    return frozenset(found)


@lru_cache(maxsize=1000)
def optimized(scope: ast.AST) -> frozenset[str]:
    """Names of weights in a function: an optimizer is made of them, or a loop goes over a list of them."""
    found = set()
    for node in walk(scope):
        if isinstance(node, ast.Call) and OPTIMIZER.match(called_name(node)):
            lists = (a for a in [*node.args, *(k.value for k in node.keywords)] if isinstance(a, (ast.List, ast.Tuple)))
            found |= {name for a in lists for item in a.elts if (name := dotted(item))}
        elif isinstance(node, ast.For) and isinstance(node.target, ast.Name) and dotted(node.iter):
            found.add(node.target.id)
    return frozenset(found)


def manual_step(engine: Engine, node: ast.AST, param: Value, by: list[ast.expr], down: bool) -> None:
    """`p -= lr * p.grad` is a step; upwards it is an attack on the weights, which is reverted later."""
    parts = [part for expression in by for part in walk(expression)]
    if not any(isinstance(part, ast.Attribute) and part.attr in ("grad", "_grad") for part in parts):
        return
    if param.kind == "instance" or param.foreign:
        return  # no tensor of PyTorch's: whether its gradients add up is not known
    if down or any(isinstance(part, ast.USub) for part in parts):
        root = param.root()
        birth = root.birth if root.kind != "unknown" or root.name else 0
        whole = engine.results.setdefault(
            f"by hand#{root.number}", Value("optimizer", "by hand", of=root, trained=(root,), birth=birth)
        )
        engine.emit("step", node, whole)


def assign_gradient(engine: Engine, node: ast.AST, target: ast.expr, right: ast.expr, op: ast.operator | None) -> bool:
    """`p.grad = None`, `p.grad /= n` and the like; returns whether the assignment is one of a gradient."""
    if not isinstance(target, ast.Attribute):
        return False
    grad = target.value if target.attr == "data" else target
    if not (isinstance(grad, ast.Attribute) and grad.attr in ("grad", "_grad")):
        return False
    owner = engine.value(grad.value)
    value = Value("gradient", of=owner)
    nothing = isinstance(right, ast.Constant) and right.value in (None, 0)
    if op is None and (nothing or "zeros" in ast.unparse(right)):
        names = descending(engine.scope.node) | optimized(engine.scope.node)
        if weight_name(grad.value) not in names and owner.kind not in ("param", "instance", "list") and owner.name:
            return True  # of an input, perhaps
        engine.emit("zero", node, value, by_hand=True)
    elif isinstance(op, (ast.Div, ast.Mult)):
        rescale(engine, node, value, op, right)
    elif op is None and isinstance(right, ast.BinOp) and isinstance(right.op, (ast.Div, ast.Mult)):
        if "grad" in ast.unparse(right.left):
            rescale(engine, node, value, right.op, right.right)
    else:
        engine.value(right)
        engine.emit("given", node, value)
    return True


def rescale(engine: Engine, node: ast.AST, value: Value, op: ast.operator, factor: ast.expr) -> None:
    engine.value(factor)
    engine.emit("scale", node, value, in_place="div_" if isinstance(op, ast.Div) else "mul_")
