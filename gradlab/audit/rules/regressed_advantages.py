"""Advantages that one term of a loss regresses and another weighs an action with, whatever network they come from."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator, Set

from gradlab.audit.knowledge.bootstrapping import LOGARITHM
from gradlab.audit.rules.registry import text_rule
from gradlab.audit.rules.unstable_losses import bindings, contexts, reaching_backward
from gradlab.audit.source.project import Module
from gradlab.audit.source.syntax import called_name, dotted, walk

REGRESSIONS = re.compile(r"mse|huber|l1_?loss", re.I)
"""Names of functions that compare a number with what it is to be."""
SHARE = re.compile(r"(^|[._])(pi|probs?)(_\w+)?$", re.I)
"""Names of the probabilities of actions."""
SHAPES = {"clamp", "clip", "exp", "sum", "squeeze", "unsqueeze", "view", "reshape"}
"""Functions and methods that make ratios of logarithms, or keep what they are."""
NUMBERS = {"tensor", "as_tensor", "Tensor", "FloatTensor", "from_numpy", "detach", "item"}
"""Functions and methods whose results have no graph."""


@text_rule("GL711")
def advantage_regressed_too(module: Module) -> Iterator[ast.AST]:
    """A difference whose square trains a network has a graph: the loss of the policy that it weighs trains that too."""
    text = module.source.text
    if "backward(" not in text or "log" not in text:
        return
    for function in module.source.nodes.of(ast.FunctionDef):
        products = [(node, factors(node)) for node in walk(function) if isinstance(node, ast.BinOp)]
        ratios = {name for n in walk(function) for name, value in bindings(n) if ratio(value)}
        products = [(node, found) for node, found in products if any(likely(one, ratios) for one in found)]
        if not products:
            continue
        reaching = reaching_backward(function)
        regressed = [pair for node in walk(function) if id(node) in reaching for pair in compared(node)]
        moving, values = set(), set()
        for name, (left, right) in differences(function).items():
            if {name} in regressed or any(pair and pair <= {left, right} for pair in regressed):
                moving |= {name}
                values |= {right} - {""}
        moving |= made_with(function, values) if values else set()
        used = (node for node, found in products if id(node) in reaching and moving & {*map(dotted, found)})
        yield from (node.left for node in used)


def made_with(function: ast.FunctionDef, values: set[str]) -> set[str]:
    """The names of sums that such a value is subtracted in, as each other difference is, and of what they go into."""
    made = [one for node in walk(function) for one in bindings(node)]
    cut = {
        name for name, value in made if any(is_number(part) for part in walk(value)) and not isinstance(value, ast.Call)
    }
    found: set[str] = set()
    while more := {name for name, value in made if name not in found | cut and goes_in(value, values, found)}:
        found |= more
    return found


def goes_in(node: ast.expr, values: set[str], names: set[str]) -> bool:
    """Whether arithmetic subtracts one of some values, or has one of some names as a term."""
    if isinstance(node, ast.UnaryOp):
        return goes_in(node.operand, values, names)
    if isinstance(node, ast.BinOp):
        subtracted = isinstance(node.op, ast.Sub) and ast.unparse(node.right) in values
        return subtracted or goes_in(node.left, values, names) or goes_in(node.right, values, names)
    return dotted(node) in names


def factors(node: ast.expr) -> list[ast.expr]:
    """The factors of a product of several expressions."""
    if isinstance(node, ast.UnaryOp):
        return factors(node.operand)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        return [*factors(node.left), *factors(node.right)]
    return [node]


def likely(node: ast.AST, ratios: Set[str] = frozenset()) -> bool:
    """Whether an expression is the logarithm of an action's probability, by a name, or a ratio, in a range perhaps."""
    if isinstance(node, ast.Subscript):
        return likely(node.value, ratios)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        inside = [node.func.value, *node.args[:1]] if node.func.attr in SHAPES else []
        shares = node.func.attr == "log" and any(SHARE.search(dotted(one)) for one in [node.func.value, *node.args])
        return node.func.attr == "log_prob" or shares or any(likely(one, ratios) for one in inside)
    return dotted(node) in ratios or bool(LOGARITHM.search(dotted(node)))


def ratio(node: ast.expr) -> bool:
    """Whether an expression is exp() of a difference from the logarithm of an action's probability."""
    calls = (part for part in walk(node) if isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute))
    inside = (part for call in calls if call.func.attr == "exp" for part in walk(call))  # type: ignore[attr-defined]
    return any(isinstance(part, ast.BinOp) and likely(part.left) for part in inside)


def compared(node: ast.AST) -> list[set[str]]:
    """The text of what is squared, or those of what a regression compares, without numbers: one has a graph."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        return squared(node.left)
    if not isinstance(node, ast.Call) or not isinstance(node.func, (ast.Attribute, ast.Name)):
        return []
    name = called_name(node) or getattr(node.func, "attr", "")
    if name in ("pow", "square"):
        own = isinstance(node.func, ast.Attribute) and dotted(node.func.value) != "torch"
        return [pair for one in ([getattr(node.func, "value")] if own else node.args[:1]) for pair in squared(one)]  # noqa: B009
    sides = node.args[:2] if REGRESSIONS.search(name) else []
    return [{ast.unparse(one) for one in sides if not is_number(one)}] if len(sides) == 2 else []


def squared(node: ast.expr) -> list[set[str]]:
    """Of what is squared its text, and those of the sides of a difference."""
    difference = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub)
    sides = [node.left, node.right] if difference else []  # type: ignore[attr-defined]
    return [{ast.unparse(node)}, *([{*map(ast.unparse, sides)}] if sides and not any(map(is_number, sides)) else [])]


def is_number(node: ast.AST) -> bool:
    """Whether an expression makes numbers without a graph: `torch.tensor([r])`, `returns.detach()`."""
    return isinstance(node, ast.Call) and getattr(node.func, "attr", "") in NUMBERS


def differences(function: ast.FunctionDef) -> dict[str, tuple[str, str]]:
    """The names that are a difference, whatever they were before, with the texts of its sides; "" if bound again."""
    blocks = [n for n in walk(function) if isinstance(n, ast.With) and "no_grad" in contexts(n)]
    without = {id(part) for block in blocks for part in walk(block)}
    names = [n for n in walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    stored = Counter(n.id for n in names)
    always = {id(one) for one in function.body}
    last = {n.id: n.lineno for n in sorted(names, key=lambda n: n.lineno)}

    found = {
        name: value
        for n in walk(function)
        for name, value in bindings(n)
        if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Sub) and id(value) not in without
        if stored[name] == 1 or (id(n) in always and value.lineno >= last[name])
        if stored[name] == 1 or name not in map(dotted, walk(value))
    }

    def text(side: ast.expr, line: int) -> str:
        return ast.unparse(side) if last.get(dotted(side), 0) <= line else ""

    return {name: (text(one.left, one.lineno), text(one.right, one.lineno)) for name, one in found.items()}
