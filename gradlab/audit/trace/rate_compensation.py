"""Rates and weight decays that make up for a window's length."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from gradlab.audit.source.project import Module
from gradlab.audit.source.syntax import walk
from gradlab.audit.trace.training_loop import Unit

RATE = re.compile(r"(^|[\W_])(lr|learning_rate|weight_decay|wd|decay)([\W_]|$)", re.I)


def compensated(module: Module, unit: Unit) -> bool:
    """Whether a rate or a weight decay is multiplied or divided by the length of the window: the sum is meant."""
    keys = [unit.period, *(atom.key for atom in unit.boundary)]
    names = {name.split(".")[-1] for key in keys for name in re.findall(r"([A-Za-z_][\w.]*)#", key)}
    if any(over_the_batch(part) for made in rates(module) for part in walk(made)):
        return True
    return bool(names) and any(
        names & {p.attr if isinstance(p, ast.Attribute) else getattr(p, "id", "") for p in walk(made)}
        for made in rates(module)
    )


def over_the_batch(node: ast.AST) -> bool:
    """A rate divided by the number of samples of an update, whose losses are sums."""
    return (
        isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.Div)
        and bool(re.search(r"(^|\.)(total_)?batch(_size)?$", ast.unparse(node.right)))
    )


def rates(module: Module) -> Iterator[ast.expr]:
    """What rates and weight decays are multiplied with, or made of."""
    nodes = module.source.nodes
    for node in nodes.of(ast.AugAssign):
        if RATE.search(ast.unparse(node.target)):
            yield node.value
    made = [(ast.unparse(node.targets[0]), node.value) for node in nodes.of(ast.Assign)]
    made += [(k.arg or "", k.value) for node in nodes.of(ast.Call) for k in node.keywords]
    for target, value in made:
        products = (isinstance(p, ast.BinOp) and isinstance(p.op, (ast.Mult, ast.Div)) for p in walk(value))
        if RATE.search(target) and any(products):
            yield value
