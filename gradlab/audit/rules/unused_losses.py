"""Losses that are computed for nothing: no other statement reads them, or they are logged with their weight alone."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from gradlab.audit.rules.unstable_losses import contexts, reaching_backward
from gradlab.audit.source.project import Function, Module
from gradlab.audit.source.syntax import called_name, children, dotted, walk

TERM = re.compile(r"loss|nll|bce|mse|(^|_)(kl|ce|kld|reg|penalty)(_|$)", re.I)
"""Names of losses and of terms of one."""
COMPUTES = re.compile(r"criterion|loss|entropy|mse|bce|nll|kl_div", re.I)
"""Names of what computes one."""
NO_TERM = re.compile(r"(^|_)(last|best|prev|old|init|fn|func|name|type|dict|list|names|weights?|scale)(_|$)", re.I)
NUMBERS = {"item", "detach", "float", "cpu", "numpy", "tolist"}
"""Functions and methods that make a number of a tensor."""
WITHOUT = re.compile(r"no_grad|inference_mode|set_grad_enabled")


Scope = ast.Module | ast.FunctionDef


def computed_for_nothing(module: Module) -> Iterator[ast.AST]:
    if module.source.tree is None:
        return
    scopes: list[Scope] = [module.source.tree, *module.source.nodes.of(ast.FunctionDef)]
    for scope in scopes:
        parts = [*within(scope)]
        calls = [n for n in parts if isinstance(n, ast.Call) and getattr(n.func, "attr", "") == "backward"]
        if calls:
            yield from left_out(scope, parts, calls)
            yield from keys_left_out(scope, calls, module)


def within(scope: Scope) -> Iterator[ast.AST]:
    """The nodes of a function, those of functions inside it included; of a script those that are in none."""
    apart = (ast.FunctionDef, ast.ClassDef) if isinstance(scope, ast.Module) else ()
    for statement in scope.body:
        if not isinstance(statement, apart):
            yield from walk(statement)


def left_out(scope: Scope, parts: list[ast.AST], calls: list[ast.Call]) -> Iterator[ast.AST]:
    """Where the loss that goes backward is made, behind a term that nothing reads or that is logged with its weight."""
    bound = [n for n in parts if isinstance(n, ast.Assign) and len(n.targets) == 1]
    names = dict.fromkeys(name for one in bound if (name := term_made(one)))
    if not names:
        return
    blocks = [w for w in parts if isinstance(w, ast.With) and WITHOUT.search(contexts(w))]
    without = {id(part) for block in blocks for part in walk(block)}
    parents = {id(child): part for part in parts for child in children(part)}
    reaching = reaching_backward(scope)
    for name in names:
        made = [one for one in bound if name in (dotted(one.targets[0]), term_made(one))]
        own = {id(part) for one in made for part in walk(one)}
        uses = [n for n in parts if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load)]
        others = [one for one in uses if id(one) not in own]
        if any(id(one) in without for one in made) or any(id(one) in reaching for one in others):
            continue
        if all(shown(one, parents, reaching) for one in others) and (
            not others or any(weighted(one.value) for one in made)
        ):
            yield from sum_behind(made[-1], calls, bound)


def term_made(made: ast.Assign) -> str:
    """The name of a loss that a statement computes, alone or before what it returns besides."""
    target = made.targets[0]
    first = target.elts[0] if isinstance(target, ast.Tuple) and isinstance(made.value, ast.Call) else target
    name = first.id if isinstance(first, ast.Name) else ""
    if not TERM.search(name) or NO_TERM.search(name) or name.startswith("_"):
        return ""
    parts = [made.value] if first is not target else [*walk(made.value)]
    calls = [part for part in parts if isinstance(part, ast.Call)]
    computed = any(COMPUTES.search(called_name(call)) and call.args for call in calls)
    computed = computed or (weighted(made.value) and scaled_loss(made.value))
    return name if computed and not any(is_number(part) for part in parts) else ""


def is_number(node: ast.AST) -> bool:
    called = isinstance(node, ast.Call) and getattr(node.func, "attr", dotted(node.func)) in NUMBERS
    return called or (isinstance(node, ast.Attribute) and node.attr == "data")


def weighted(node: ast.expr) -> bool:
    """Whether a term is multiplied by a weight that a setting or a name gives."""
    product = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)
    return product and any(isinstance(side, (ast.Name, ast.Attribute)) for side in (node.left, node.right))  # type: ignore[attr-defined]


def scaled_loss(node: ast.expr) -> bool:
    """Whether a product has a loss as a factor, by its name."""
    return any(isinstance(part, ast.Name) and bool(TERM.search(part.id)) for part in walk(node))


def shown(node: ast.AST, parents: dict[int, ast.AST], reaching: set[int]) -> bool:
    """Whether a use of a tensor takes its number alone, and not for a loss."""
    number = False
    while not isinstance(node, ast.stmt) and (above := parents.get(id(node))) is not None:
        number = number or is_number(above)
        node = above
        if id(node) in reaching:
            return False
    return number


def sum_behind(term: ast.Assign, calls: list[ast.Call], bound: list[ast.Assign]) -> list[ast.Assign]:
    """The statement behind a term that makes what the next backward() is called on."""
    call = min((c for c in calls if c.lineno > term.lineno), key=lambda c: c.lineno, default=None)
    func = call.func if call is not None else None
    loss = dotted(func.value) if isinstance(func, ast.Attribute) else ""
    made = [n for n in bound if dotted(n.targets[0]) == loss != "" and term.lineno < n.lineno < call.lineno]  # type: ignore[union-attr]
    return sorted(made, key=lambda n: n.lineno)[-1:]


def keys_left_out(function: Scope, calls: list[ast.Call], module: Module) -> Iterator[ast.AST]:
    """The same of the losses of a dictionary that a function of the module returns, one by one."""
    known = {one.name: one for one in module.source.nodes.of(ast.FunctionDef)}
    for made in (n for n in walk(function) if isinstance(n, ast.Assign) and len(n.targets) == 1):
        name, callee = dotted(made.targets[0]), known.get(called_name(made.value))
        keys = loss_keys(callee) if callee is not None and name else set()
        if len(keys) < 3:
            continue
        uses = [n for n in walk(function) if dotted(n) == name and isinstance(getattr(n, "ctx", None), ast.Load)]
        items = [n for n in walk(function) if isinstance(n, ast.Subscript) and dotted(n.value) == name]
        read = {n.slice.value for n in items if isinstance(n.slice, ast.Constant)}
        reaching = reaching_backward(function)
        going = {n.slice.value for n in items if isinstance(n.slice, ast.Constant) and id(n) in reaching}
        left = keys - read
        if len(uses) == len(items) and len(left) == 1 and len(going & keys) > 1 and not mentioned(module, left, callee):
            bound = [n for n in walk(function) if isinstance(n, ast.Assign)]
            yield from sum_behind(made, calls, bound)


def loss_keys(function: Function | None) -> set[object]:
    """The keys of the losses in a dictionary that a function returns."""
    answers = [n.value for n in walk(function) if isinstance(n, ast.Return)] if function is not None else []
    literal = answers[0] if len(answers) == 1 and isinstance(answers[0], ast.Dict) else None
    if literal is None:
        return set()
    pairs = [(k.value, v) for k, v in zip(literal.keys, literal.values) if isinstance(k, ast.Constant)]
    return {
        key for key, value in pairs if TERM.search(f"{key!s} {dotted(value)}") and not any(map(is_number, walk(value)))
    }


def mentioned(module: Module, keys: set[object], callee: ast.AST | None) -> bool:
    """Whether a text names one of some keys elsewhere than in a function."""
    own = {id(part) for part in walk(callee)} if callee is not None else set()
    return any(n.value in keys and id(n) not in own for n in module.source.nodes.of(ast.Constant))
