"""Learning rates and weight decays that make up for the length of a window.

The sum of n gradients at the rate lr / n moves the weights as their mean at lr does, and a weight decay times n stays
in proportion to such a sum. A schedule that counts updates may mention the length too, and makes up for nothing.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from gradlab.audit.knowledge.known_names import OPTIMIZER
from gradlab.audit.source.project import Module
from gradlab.audit.source.syntax import called_name, dotted, walk
from gradlab.audit.trace.training_loop import TrainingLoop

RATE = re.compile(r"(^|_)(lr|learning_rate|eta)$", re.I)
DECAY = re.compile(r"(^|_)(weight_decay|wd|decay|l2)$", re.I)
BATCH = re.compile(r"(^|\.)(total_)?batch(_size)?$")
COUNTER = re.compile(
    r"(^|_)(steps?|iters?|iterations?|it|i|k|t|epochs?|idx|index|progress|warm_?up|updates?)(_|$)", re.I
)
"""Names of what changes in the course of a run: a rate made of them is a schedule."""
SAME = ("int", "float", "max")
DEEP = 4
"""How many names in a product are replaced by the products that they were assigned."""


def compensated(module: Module, loop: TrainingLoop) -> bool:
    """Whether a rate is divided by the window's length, or a decay multiplied with it: then the sum is intended."""
    names = lengths(loop)
    for target, above, below in products(module):
        rate = RATE.search(target) is not None
        known = [part for part in (*above, *below) if last_name(part) not in names]
        if any(COUNTER.search(last_name(part)) for part in known):
            continue
        if rate and any(BATCH.search(ast.unparse(part)) for part in below):
            return True  # by the number of samples of an update, whose losses are sums
        divided = any(last_name(part) in names for part in below)
        multiplied = any(last_name(part) in names for part in above)
        if divided or (multiplied and not rate):
            return True
    return False


def lengths(loop: TrainingLoop) -> set[str]:
    """The names of the window's length: what counters are compared with, and no counter."""
    keys = [atom.period if atom.period else atom.key for atom in loop.boundary]
    keys += [
        item.over.stop or ""
        for item in loop.window_loops
        if item.over is not None and item.over.kind == "counted" and not item.over.stride
    ]
    names = {name.split(".")[-1] for key in [loop.period, *keys] for name in re.findall(r"([A-Za-z_][\w.]*)#", key)}
    return names - (counted(loop.statement.node) if loop.statement is not None else set())


def counted(node: ast.AST) -> set[str]:
    """The last parts of the names that a loop counts up."""
    found: set[str] = set()
    for part in walk(node):
        if isinstance(part, ast.AugAssign) or (isinstance(part, ast.For) and isinstance(part.target, ast.Name)):
            found.add(last_name(part.target))
        elif isinstance(part, ast.Assign) and isinstance(part.value, ast.BinOp):
            found |= {last_name(part.targets[0])} & {last_name(part.value.left)}
    return found


def last_name(node: ast.AST) -> str:
    return dotted(node).split(".")[-1]


def products(module: Module) -> Iterator[tuple[str, list[ast.expr], list[ast.expr]]]:
    """Rates and weight decays that are products: the last part of their name, what is above the line, what below."""
    known = assigned_once(module)
    for target, value, upside_down in assignments(module):
        if RATE.search(target) or DECAY.search(target):
            above: list[ast.expr] = []
            below: list[ast.expr] = []
            split(value, below if upside_down else above, above if upside_down else below, known, DEEP)
            if upside_down or len(above) + len(below) > 1:
                yield target, above, below


def assignments(module: Module) -> Iterator[tuple[str, ast.expr, bool]]:
    """Names, keywords and keys with what they are bound to; whether it divides them."""
    nodes = module.source.nodes
    for augmented in nodes.of(ast.AugAssign):
        if isinstance(augmented.op, (ast.Mult, ast.Div)):
            divides = isinstance(augmented.op, ast.Div)
            one = ast.BinOp(ast.Constant(1.0), ast.Mult(), augmented.value)
            yield bound_name(augmented.target), augmented.value if divides else one, divides
    for node in nodes.of(ast.Assign):
        yield bound_name(node.targets[0]), node.value, False
    for call in nodes.of(ast.Call):
        for keyword in call.keywords:
            yield keyword.arg or "", keyword.value, False
        if len(call.args) > 1 and OPTIMIZER.match(called_name(call)):
            yield "lr", call.args[1], False
    for pairs in nodes.of(ast.Dict):
        for key, value in zip(pairs.keys, pairs.values):
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                yield key.value, value, False


def bound_name(target: ast.expr) -> str:
    """`lr` of lr, args.lr and group["lr"]."""
    if isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant):
        return str(target.slice.value)
    return last_name(target)


def assigned_once(module: Module) -> dict[str, ast.expr]:
    """Products by the names that they alone are assigned to."""
    found: dict[str, list[ast.expr]] = {}
    for node in module.source.nodes.of(ast.Assign):
        if isinstance(node.targets[0], ast.Name):
            found.setdefault(node.targets[0].id, []).append(node.value)
    return {name: values[0] for name, values in found.items() if len(values) == 1 and isinstance(values[0], ast.BinOp)}


def split(node: ast.expr, above: list[ast.expr], below: list[ast.expr], known: dict[str, ast.expr], depth: int) -> None:
    """The factors of a product of products and quotients."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Mult, ast.Div)):
        split(node.left, above, below, known, depth)
        swapped = isinstance(node.op, ast.Div)
        split(node.right, below if swapped else above, above if swapped else below, known, depth)
    elif isinstance(node, ast.Call) and dotted(node.func) in SAME and node.args:
        split(node.args[0], above, below, known, depth)
    elif isinstance(node, ast.Name) and depth and node.id in known:
        split(known[node.id], above, below, known, depth - 1)
        above.append(node)
    else:
        above.append(node)
