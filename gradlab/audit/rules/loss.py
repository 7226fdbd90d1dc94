"""Losses that leave the numbers by themselves, and losses kept with their graphs."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from gradlab.audit.known import dotted
from gradlab.audit.project import Module
from gradlab.audit.rules import Hit, rule
from gradlab.audit.trace import Run

LOSS = re.compile(r"(^|_)(loss|criterion)|Loss$", re.I)
COUNT = re.compile(
    r"(^|_)(n|b|k|t|eps|epsilon|num|count|size|len|length|total|temp|temperature|tau|sigma|std|var|scale|weight|weights|alpha|beta|"
    r"gamma|norm|max|dim|batch|world|sum|denom|mask|valid|steps|avg|factor|numel|margin|delta|smooth|log_var)(_|$)|batch|size|num|len|temp",
    re.I,
)


def losses(module: Module) -> Iterator[ast.FunctionDef]:
    """Functions named as a loss, and the forward of classes named so."""
    for node in ast.walk(module.source.tree) if module.source.tree else ():
        if (
            isinstance(node, ast.FunctionDef)
            and LOSS.search(node.name)
            and not re.search(r"log|plot|print|get|make|build|init", node.name)
        ):
            yield node
        elif isinstance(node, ast.ClassDef) and re.search(r"Loss$|Criterion$", node.name):
            yield from (n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "forward")


def inputs(node: ast.FunctionDef) -> set[str]:
    """Parameters that can be predictions: without a default, not a number by their name or annotation."""
    plain = node.args.args[: len(node.args.args) - len(node.args.defaults)]
    named = [a for a in plain if a.arg not in ("self", "cls") and not COUNT.search(a.arg)]
    found = {a.arg for a in named if a.annotation is None or "Tensor" in ast.unparse(a.annotation)}
    changed = {t.id for n in ast.walk(node) if isinstance(n, ast.Assign) for t in n.targets if isinstance(t, ast.Name)}
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


@rule(
    "GL601",
    "log-of-zero",
    "warning",
    "log of a prediction that may be 0: the loss is infinite, its gradient is not a number",
    "Measured in experiments/nan_loss: log(0) is -inf. An eps inside only moves the pole for values that may be "
    "negative.",
    "loss = F.cross_entropy(logits, target)  # or F.binary_cross_entropy_with_logits, or torch.log(p.clamp_min(1e-8))",
    on="text",
)
def log(module: Module) -> Iterator[ast.AST]:
    for function in losses(module):
        names = inputs(function)
        for node in ast.walk(function):
            if bare(called(node, "log"), names):
                yield node


@rule(
    "GL602",
    "division-by-prediction",
    "warning",
    "division by a prediction that may be near 0: the loss and its gradient explode",
    "Measured in experiments/nan_loss. pred + eps has its pole at -eps; use pred.abs() + eps, or clamp.",
    "loss = ((pred - target) / (pred.abs() + 1e-8)).pow(2).mean()",
    on="text",
)
def division(module: Module) -> Iterator[ast.AST]:
    for function in losses(module):
        names = inputs(function)
        for node in ast.walk(function):
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and isinstance(node.right, ast.Name):
                if node.right.id in names and called_on(function, node.right.id):
                    yield node


def called_on(function: ast.FunctionDef, name: str) -> bool:
    """The result is reduced as tensors are, so that the divisor is one too."""
    return (
        any(isinstance(n, ast.Attribute) and n.attr in ("mean", "sum", "pow", "abs") for n in ast.walk(function))
        and list(inputs_in_order(function))[:2].count(name) > 0
    )


def inputs_in_order(function: ast.FunctionDef) -> Iterator[str]:
    yield from (a.arg for a in function.args.args if a.arg not in ("self", "cls"))


@rule(
    "GL603",
    "sqrt-at-zero",
    "warning",
    "sqrt of a square or of a difference: at 0 its gradient is not a number",
    "Measured in experiments/nan_loss: the derivative of sqrt at 0 is infinite, and infinity times 0 is NaN.",
    "distance = (diff.pow(2) + 1e-12).sqrt()  # or diff.abs()",
    on="text",
)
def sqrt(module: Module) -> Iterator[ast.AST]:
    for function in losses(module):
        for node in ast.walk(function):
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


@rule(
    "GL604",
    "exp-of-unbounded",
    "warning",
    "exp of an unbounded output: infinite from 88.7 in fp32, from 11.1 in fp16",
    "Measured in experiments/nan_loss. logsumexp, softmax and cross_entropy subtract the largest first.",
    "loss = torch.logsumexp(logits, dim=-1).mean()  # or F.cross_entropy(logits, target)",
    on="text",
)
def exp(module: Module) -> Iterator[ast.AST]:
    for function in losses(module):
        names = {
            n for n in inputs(function) if not re.search(r"log_?(var|std|sigma|p|prob|scale)|var|sigma|std", n, re.I)
        }
        for node in ast.walk(function):
            if bare(called(node, "exp"), names) and isinstance(called(node, "exp"), (ast.Name, ast.Subscript)):
                yield node


@rule(
    "GL605",
    "loss-kept-with-graph",
    "warning",
    "a loss is kept with its graph: memory grows with every batch",
    "Each kept loss holds what its backward pass would need. Keep loss.item(), or loss.detach() where nothing "
    "may wait for the device.",
    "total += loss.detach()",
)
def kept(run: Run) -> Iterator[Hit]:
    unit = run.unit
    if unit.loop is None:
        return
    backwards = [e for e in [*unit.events, *unit.after] if e.kind == "backward" and e.value is not None]
    texts = {e.data.get("text", "") for e in backwards}
    used = frozenset().union(*(e.value.data.get("roots", frozenset()) for e in backwards if e.value is not None))
    for keep in run.of("keep"):
        into = keep.event.data["into"]
        if keep.event.data["token"] in used:
            continue
        if into and any(text == into or text.startswith((f"{into}.", f"{into} ", f"({into}")) for text in texts):
            continue
        roots = keep.event.value.data.get("roots", frozenset()) if keep.event.value is not None else frozenset()
        for backward in run.of("backward"):
            value = backward.event.value
            if backward.k == keep.k and value is not None and value.data.get("roots", frozenset()) & roots:
                yield Hit(keep, (backward,))
                break
