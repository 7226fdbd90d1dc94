"""Learning rates and weight decays that make up for the length of a window."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from gradlab.audit.source.project import Module
from gradlab.audit.source.syntax import walk
from gradlab.audit.trace.training_loop import TrainingLoop

RATE = re.compile(r"(^|[\W_])(lr|learning_rate|weight_decay|wd|decay)([\W_]|$)", re.I)
BATCH = re.compile(r"(^|\.)(total_)?batch(_size)?$")


def compensated(module: Module, loop: TrainingLoop) -> bool:
    """Whether a rate or a weight decay is multiplied or divided by the window's length: then the sum is intended."""
    keys = [loop.period, *(atom.key for atom in loop.boundary)]
    names = {name.split(".")[-1] for key in keys for name in re.findall(r"([A-Za-z_][\w.]*)#", key)}
    if any(over_the_batch(part) for rate in rates(module) for part in walk(rate)):
        return True
    return bool(names) and any(
        names & {p.attr if isinstance(p, ast.Attribute) else getattr(p, "id", "") for p in walk(rate)}
        for rate in rates(module)
    )


def over_the_batch(node: ast.AST) -> bool:
    """A rate divided by the number of samples of an update, whose losses are sums."""
    return (
        isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.Div)
        and BATCH.search(ast.unparse(node.right)) is not None
    )


def rates(module: Module) -> Iterator[ast.expr]:
    """What rates and weight decays are multiplied with, or made of."""
    nodes = module.source.nodes
    for node in nodes.of(ast.AugAssign):
        if RATE.search(ast.unparse(node.target)):
            yield node.value
    assigned = [(ast.unparse(node.targets[0]), node.value) for node in nodes.of(ast.Assign)]
    assigned += [(k.arg or "", k.value) for node in nodes.of(ast.Call) for k in node.keywords]
    for target, value in assigned:
        products = (isinstance(p, ast.BinOp) and isinstance(p.op, (ast.Mult, ast.Div)) for p in walk(value))
        if RATE.search(target) and any(products):
            yield value
