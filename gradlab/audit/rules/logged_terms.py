"""Terms of a loss that are computed with their weights, and only logged."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from gradlab.audit.rules.unstable_losses import bindings, reaching_backward
from gradlab.audit.source.project import Function, Module
from gradlab.audit.source.syntax import called_name, children, dotted, walk

TERM = re.compile(r"_?(loss|divergence|term)$", re.I)
"""How names of terms end."""
WEIGHT = re.compile(r"_?(weight|coef\w*|lambda|beta|scale|factor)$", re.I)
"""How names of their weights end."""
NUMBERS = {"item", "detach", "float", "cpu", "numpy"}
"""Functions and methods that make a number of a tensor."""


def logged_alone(module: Module) -> Iterator[ast.AST]:
    """The loss that goes backward, where a term and the weight that was computed for it are logged, and not in it."""
    functions = {one.name: one for one in module.source.nodes.of(ast.FunctionDef)}
    for function in functions.values():
        names = computed_names(function, functions)
        pairs = [(a, b) for a in names for b in names if TERM.search(a) and WEIGHT.search(b)]
        pairs = [(a, b) for a, b in pairs if TERM.sub("", a) == WEIGHT.sub("", b) != ""]
        parents = {id(child): part for part in within(function) for child in children(part)} if pairs else {}
        for term, weight in pairs:
            if only_shown(function, term, parents, True) and only_shown(function, weight, parents, False):
                others, beside = names[term][0] | names[weight][0], names[term][1]
                yield from goes_backward(function, {term, weight} | others, beside)


def within(function: Function) -> Iterator[ast.AST]:
    """The nodes of a function without those of functions inside it."""
    todo: list[ast.AST] = [*function.body]
    while todo:
        node = todo.pop()
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            yield node
            todo += children(node)


def computed_names(function: Function, functions: dict[str, ast.FunctionDef]) -> dict[str, tuple[set[str], set[str]]]:
    """Names of what functions of the module return; of each those beside it: that were made of it, and the others."""
    found: dict[str, tuple[set[str], set[str]]] = {}
    for node in within(function):
        target = node.targets[0] if isinstance(node, ast.Assign) and len(node.targets) == 1 else None
        callee = functions.get(called_name(getattr(node, "value", None)))
        returns = [n.value for n in within(callee) if isinstance(n, ast.Return)] if callee is not None else []
        if isinstance(target, ast.Name) and callee is not None:
            found[target.id] = set(), set()
        if callee is None or not isinstance(target, ast.Tuple) or len(returns) != 1:
            continue
        answer, names = returns[0], [dotted(one) for one in target.elts]
        if isinstance(answer, ast.Tuple) and len(answer.elts) == len(names) and all(map(dotted, answer.elts)):
            made_from = [needed(callee, dotted(one)) for one in answer.elts]
            for name, own in zip(names, answer.elts):
                others = {other for other, made in zip(names, made_from) if other != name and dotted(own) in made}
                found[name] = others, {*names} - others - {name}
    return found


def needed(function: Function, name: str) -> set[str]:
    """The names that a name's value is computed from."""
    made = [one for node in within(function) for one in bindings(node)]
    found: set[str] = set()
    ahead = {name}
    while ahead:
        inside = {dotted(part) for one, value in made if one in ahead for part in walk(value)} - {""}
        found, ahead = found | inside, inside - found
    return found


def only_shown(function: Function, name: str, parents: dict[int, ast.AST], tensor: bool) -> bool:
    """Whether a name is used, and only in statements that keep nothing; tensor: and only as a number."""
    uses = [n for n in within(function) if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load)]
    return bool(uses) and all(shown(one, parents, tensor) for one in uses)


def shown(node: ast.AST, parents: dict[int, ast.AST], tensor: bool) -> bool:
    """The same of one use of it."""
    number = not tensor
    while not isinstance(node, ast.stmt) and (above := parents.get(id(node))) is not None:
        called = isinstance(above, ast.Call) and getattr(above.func, "attr", dotted(above.func)) in NUMBERS
        number = number or called or (isinstance(above, ast.Attribute) and above.attr == "data")
        node = above
    return number and (tensor or isinstance(node, ast.Expr))


def goes_backward(function: ast.FunctionDef, names: set[str], beside: set[str]) -> Iterator[ast.AST]:
    """Where the loss that goes backward is made, if it comes from none of these names, and from one beside them."""
    reaching = reaching_backward(function)
    going = {n.id for n in within(function) if isinstance(n, ast.Name) and id(n) in reaching}
    if going & names or not going & beside:
        return
    calls = [n for n in within(function) if isinstance(n, ast.Call) and getattr(n.func, "attr", "") == "backward"]
    for call in calls if len(calls) == 1 else ():
        loss = dotted(call.func.value) if isinstance(call.func, ast.Attribute) else ""
        made = [n for n in within(function) if isinstance(n, ast.Assign) and dotted(n.targets[0]) == loss != ""]
        yield max((n for n in made if n.lineno < call.lineno), key=lambda n: n.lineno, default=call)
