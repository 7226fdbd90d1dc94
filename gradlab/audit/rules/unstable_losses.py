"""Losses that become non-finite by themselves: in functions named as a loss, and in what a training loop computes."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import partial

from gradlab.audit.rules.loss_functions import (
    averaged,
    bare,
    called,
    called_on,
    forwards,
    inputs,
    losses,
    named_calls,
    operand,
    share,
    square,
)
from gradlab.audit.rules.registry import Hit, scenario_rule, text_rule
from gradlab.audit.source.project import Module
from gradlab.audit.source.syntax import called_name, dotted, walk
from gradlab.audit.trace.scenarios import Scenario
from gradlab.audit.trace.values import Value


def computed(scenario: Scenario, what: str) -> Iterator[Hit]:
    """Where a loss that goes backward may become non-finite."""
    for step in scenario.of("unstable"):
        if step.event.what == what:
            for backward in scenario.of("backward"):
                value = backward.event.value
                if backward.k == step.k and value is not None and step.event.token in value.roots:
                    used = step.event.value if what == "input" else None
                    fault = partial(same_numbers, used) if used is not None else None
                    yield Hit(step, (backward,), fault=fault, flows=True)
                    break


def same_numbers(used: Value, given: Value) -> bool:
    """Whether a value that was given is the one that a function is used on, in this shape or another."""
    return given is used or (given.kind == "tensor" and given.range == used.range and given.roots == used.roots)


COMPUTED = {"GL601": "log", "GL602": "division", "GL603": "sqrt", "GL604": "exp", "GL606": "rmse", "GL609": "input"}
"""Which words of events make what a loss computes wrong by itself, or give a loss function what it does not take."""
for code, word in COMPUTED.items():
    scenario_rule(code)(partial(computed, what=word))


OF_LOGITS = re.compile(r"((torch\.)?nn\.|functional\.|F\.)*(cross_entropy|binary_cross_entropy_with_logits)")
"""Functions of PyTorch's that take no probabilities, and under which names."""
EVALUATION = re.compile(r"eval|valid|test|infer|predict", re.I)


@text_rule("GL609")
def probabilities_for_logits(module: Module) -> Iterator[ast.AST]:
    if not re.search(r"softmax|sigmoid", module.source.text):
        return
    for function in module.source.nodes.of(ast.FunctionDef):
        made = (n for n in walk(function) if isinstance(n, ast.Assign))
        own = {dotted(n.targets[0]) for n in made if called_name(n.value) in ("CrossEntropyLoss", "BCEWithLogitsLoss")}
        calls = [n for n in walk(function) if isinstance(n, ast.Call) and n.args]
        found = [n for n in calls if OF_LOGITS.fullmatch(dotted(n.func)) or (dotted(n.func) and dotted(n.func) in own)]
        if not found or EVALUATION.search(function.name):
            continue
        blocks = [w for w in walk(function) if isinstance(w, ast.With) and "no_grad" in contexts(w)]
        without_gradient = {id(part) for block in blocks for part in walk(block)}
        given = Counter(n.id for n in walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
        given.update(a.arg for a in function.args.args)
        shares = (n for n in found if given[dotted(n.args[0])] < 2 and share(n.args[0], function))
        yield from (n for n in shares if id(n) not in without_gradient)


@text_rule("GL601")
def log(module: Module) -> Iterator[ast.AST]:
    for function in losses(module):
        names = inputs(function)
        found = [(node, inner) for node in walk(function) if bare(inner := called(node, "log"), names)]
        plain = {inner.id for _, inner in found if isinstance(inner, ast.Name)}
        divergence = {id(part) for call in named_calls(function, "kl_div") for part in walk(call)}
        if len(plain) < 2:  # of both: densities or magnitudes, which are positive by what they are
            yield from (node for node, _ in found if id(node) not in divergence)
        yield from (node for node in walk(function) if share(called(node, "log"), function))
    for function in forwards(module):
        yield from (node for node in walk(function) if share(called(node, "log"), function))
    yield from log_of_softmax(module)


def log_of_softmax(module: Module) -> Iterator[ast.AST]:
    """log(softmax(x)) in one expression, in a function that calls backward() or is named as a loss."""
    if not re.search(r"softmax|sigmoid", module.source.text):
        return
    for function in module.source.nodes.of(ast.FunctionDef):
        nodes = [
            n for n in walk(function) if isinstance(inner := called(n, "log"), ast.Call) and share(inner, function)
        ]
        named = re.search(r"loss|cross_?entropy|nll", function.name, re.I) is not None
        trains = named or next(named_calls(function, "backward"), None) is not None
        if nodes and trains:
            blocks = [w for w in walk(function) if isinstance(w, ast.With) and "no_grad" in contexts(w)]
            without_gradient = {id(part) for block in blocks for part in walk(block)}
            yield from (node for node in nodes if id(node) not in without_gradient)


def trained_on(module: Module, name: str) -> Iterator[tuple[ast.FunctionDef, ast.AST]]:
    """Calls of a function, where the function around calls backward() on what is computed with them."""
    if not re.search(rf"\b{name}\(", module.source.text) or "backward(" not in module.source.text:
        return
    for function in module.source.nodes.of(ast.FunctionDef):
        reaching = None
        for node in walk(function):
            if called(node, name) is not None:
                reaching = reaching_backward(function) if reaching is None else reaching
                if id(node) in reaching:
                    yield function, node


def reaching_backward(function: ast.AST) -> set[int]:
    """Ids of the expressions in a function, or a script, that a loss is computed from, on which it calls backward()."""
    ahead: list[ast.AST] = [
        part
        for call in (n for n in walk(function) if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute))
        if isinstance(call.func, ast.Attribute) and call.func.attr in ("backward", "manual_backward")
        for part in (call.args[:1] or [call.func.value])
    ]
    made = [one for n in walk(function) for one in bindings(n)]
    found: set[int] = set()
    while ahead:
        node = ahead.pop()
        if id(node) in found or getattr(getattr(node, "func", None), "attr", "") in ("item", "detach", "no_grad"):
            continue
        found.add(id(node))
        ahead += ast.iter_child_nodes(node)
        if isinstance(node, ast.Name):
            ahead += [value for name, value in made if name == node.id]
    return found


def bindings(node: ast.AST) -> list[tuple[str, ast.expr]]:
    """The names that a statement or a call of append() gives something, each with that."""
    if isinstance(node, ast.Call):
        added = isinstance(node.func, ast.Attribute) and node.func.attr in ("append", "insert") and node.args
        return [(dotted(node.func.value), node.args[-1])] if added and isinstance(node.func, ast.Attribute) else []
    if not isinstance(node, (ast.Assign, ast.AugAssign)):
        return []
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return [(dotted(target), node.value) for target in targets]


def contexts(node: ast.With) -> str:
    return " ".join(ast.unparse(item.context_expr) for item in node.items)


@text_rule("GL602")
def division(module: Module) -> Iterator[ast.AST]:
    for function in losses(module):
        names = inputs(function)
        ratios = {id(part) for call in named_calls(function, "log") for part in walk(call)}
        for node in walk(function):
            if id(node) in ratios:
                continue  # of densities, which are positive
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and isinstance(node.right, ast.Name):
                if node.right.id in names and called_on(function, node.right.id):
                    yield node


@text_rule("GL603")
def sqrt(module: Module) -> Iterator[ast.AST]:
    for function in losses(module):
        for node in walk(function):
            inner = called(node, "sqrt")
            if inner is not None and (bare(inner, inputs(function)) or square(inner)) and not averaged(inner):
                yield node
    for function, node in trained_on(module, "sqrt"):
        inner = called(node, "sqrt")
        if inner is not None and square(inner) and not averaged(inner) and of_difference(inner, function):
            yield node


def of_difference(node: ast.expr, function: ast.FunctionDef) -> bool:
    """Whether what is squared is the difference of two tensors, or of weights from themselves: 0 where they agree."""
    for part in walk(node):
        if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Pow):
            base = part.left
        elif isinstance(part, ast.Call) and getattr(part.func, "attr", "") in ("pow", "square"):
            base = operand(part)
        else:
            continue
        if isinstance(base, ast.Name) and len(given := values_of(base, function)) == 1:
            base = given[0]
        if isinstance(base, ast.BinOp) and isinstance(base.op, ast.Sub):
            sides = (base.left, base.right)
            return all(isinstance(side, (ast.Name, ast.Attribute)) for side in sides) or pairs(*sides, function)
    return False


def values_of(node: ast.expr, function: ast.FunctionDef) -> list[ast.expr]:
    """What a name is bound to in a function."""
    return [value for n in walk(function) for name, value in bindings(n) if name and name == dotted(node)]


def pairs(one: ast.expr, two: ast.expr, function: ast.FunctionDef) -> bool:
    """Whether two sides are the same weights in two shapes, so that each is compared with itself too."""
    bases = [reshaped(side) for side in (one, two)]
    if ast.unparse(one) == ast.unparse(two) or ast.unparse(bases[0]) != ast.unparse(bases[1]):
        return False
    sources = [bases[0], *values_of(bases[0], function)]
    return any(getattr(part, "attr", "") in ("weight", "parameters") for source in sources for part in walk(source))


def reshaped(node: ast.expr) -> ast.expr:
    """What is put into another shape."""
    if isinstance(node, ast.Subscript) and any(getattr(part, "value", 0) is None for part in walk(node.slice)):
        return reshaped(node.value)
    shapes = isinstance(node, ast.Call) and getattr(node.func, "attr", "") in ("unsqueeze", "view", "reshape", "expand")
    return reshaped(operand(node)) if shapes and isinstance(node, ast.Call) else node


@text_rule("GL606")
def rmse(module: Module) -> Iterator[ast.AST]:
    for function in losses(module):
        for node in walk(function):
            inner = called(node, "sqrt")
            if inner is not None and averaged(inner) and (square(inner) or "mse" in ast.unparse(inner).lower()):
                yield node


@text_rule("GL604")
def exp(module: Module) -> Iterator[ast.AST]:
    for function in losses(module):
        names = {
            n for n in inputs(function) if not re.search(r"(^|_)log_|log_?(p|prob|scale|rate)|var|sigma|std", n, re.I)
        }
        for node in walk(function):
            if bare(called(node, "exp"), names) and isinstance(called(node, "exp"), (ast.Name, ast.Subscript)):
                if not any(rate(part, node) for part in walk(function)):
                    yield node


def rate(node: ast.AST, exp: ast.AST) -> bool:
    """exp(x) - y x, or exp(x) - x: the likelihood of a count or a variance, where x is the logarithm of a rate."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, (ast.Add, ast.Sub)):
        return False
    text = ast.unparse(called(exp, "exp") or exp)
    sides = [list(walk(side)) for side in (node.left, node.right)]
    linear = [
        any(isinstance(p, ast.expr) and ast.unparse(p) == text for p in side) and exp not in side for side in sides
    ]
    return (exp in sides[0] and linear[1]) or (exp in sides[1] and linear[0])
