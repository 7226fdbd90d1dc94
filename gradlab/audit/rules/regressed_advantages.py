"""Advantages that one term of a loss regresses and another weighs an action with, whatever network they come from."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator

from gradlab.audit.knowledge.bootstrapping import LOGARITHM
from gradlab.audit.rules.registry import text_rule
from gradlab.audit.rules.unstable_losses import bindings, contexts, reaching_backward
from gradlab.audit.source.project import Module
from gradlab.audit.source.syntax import called_name, dotted, walk

REGRESSIONS = {"mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "MSELoss", "SmoothL1Loss", "HuberLoss"}
"""Functions that compare a number with what it is to be."""


@text_rule("GL711")
def advantage_regressed_too(module: Module) -> Iterator[ast.AST]:
    """A difference whose square trains a network has a graph: the loss of the policy that it weighs trains that too."""
    text = module.source.text
    if "backward(" not in text or "log" not in text:
        return
    for function in module.source.nodes.of(ast.FunctionDef):
        products = [(node, factors(node)) for node in walk(function) if isinstance(node, ast.BinOp)]
        products = [(node, found) for node, found in products if any(map(likely, found))]
        if not products:
            continue
        reaching = reaching_backward(function)
        regressed = [pair for node in walk(function) if id(node) in reaching for pair in compared(node)]
        for name, sides in differences(function).items():
            if name in regressed or any(set(sides) == set(pair) for pair in regressed if isinstance(pair, tuple)):
                used = (node for node, found in products if id(node) in reaching and name in map(dotted, found))
                yield from (node.left for node in used)


def factors(node: ast.expr) -> list[ast.expr]:
    """The factors of a product of several expressions."""
    if isinstance(node, ast.UnaryOp):
        return factors(node.operand)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        return [*factors(node.left), *factors(node.right)]
    return [node]


def likely(node: ast.expr) -> bool:
    """Whether an expression is the logarithm of an action's probability, by the name of it or of its method."""
    return called_name(node) == "log_prob" or bool(LOGARITHM.search(dotted(node)))


def compared(node: ast.AST) -> list[str | tuple[str, str]]:
    """The name of what is squared, or the texts of what a regression compares."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        return [dotted(node.left)]
    name = called_name(node)
    if not isinstance(node, ast.Call) or not isinstance(node.func, (ast.Attribute, ast.Name)):
        return []
    if name in ("pow", "square"):
        inner = node.func.value if isinstance(node.func, ast.Attribute) else None
        return [dotted(node.args[0] if dotted(inner) == "torch" and node.args else inner)]
    return [(ast.unparse(node.args[0]), ast.unparse(node.args[1]))] if name in REGRESSIONS and node.args[1:] else []


def differences(function: ast.FunctionDef) -> dict[str, tuple[str, str]]:
    """The names that a function binds once, to a difference with a graph, each with the texts of its two sides."""
    blocks = [n for n in walk(function) if isinstance(n, ast.With) and "no_grad" in contexts(n)]
    without = {id(part) for block in blocks for part in walk(block)}
    made = [one for n in walk(function) for one in bindings(n)]
    times = Counter(name for name, _ in made)
    stored = Counter(n.id for n in walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
    return {
        name: (ast.unparse(value.left), ast.unparse(value.right))
        for name, value in made
        if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Sub) and id(value) not in without
        if times[name] == stored[name] == 1
    }
