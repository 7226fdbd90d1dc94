"""Optimizers that are named after one network and have the weights of another, which has an optimizer already."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import zip_longest

from gradlab.audit.knowledge.known_names import CLIPS, OPTIMIZER
from gradlab.audit.knowledge.tensor_methods import DETACHED, OF_ONE
from gradlab.audit.rules.registry import text_rule
from gradlab.audit.source.project import Module
from gradlab.audit.source.syntax import called_name, dotted, walk

WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
GENERAL = re.compile(r"optim\w*|opt|net|nets|network|model|module|self|solver")
"""Words that say what an object is, and not which."""
Scope = ast.Module | ast.ClassDef | ast.FunctionDef


@text_rule("GL702")
def weights_of_another(module: Module) -> Iterator[ast.AST]:
    if module.source.text.count(".parameters()") < 2 or module.source.tree is None:
        return
    nodes = module.source.nodes
    classes = nodes.of(ast.ClassDef)
    inside = {id(part) for one in classes for part in walk(one)}
    functions = [one for one in nodes.of(ast.FunctionDef) if id(one) not in inside]
    within = inside | {id(part) for one in functions for part in walk(one)}
    scopes: list[Scope] = [*classes, *functions]
    for scope in scopes:
        yield from typed_wrong(scope, list(walk(scope)), {*module.imports, *module.names})
    rest = [part for part in walk(module.source.tree) if id(part) not in within]
    yield from typed_wrong(module.source.tree, rest, {*module.imports, *module.names})


def typed_wrong(scope: Scope, parts: list[ast.AST], known: set[str]) -> Iterator[ast.AST]:
    """The calls that make an optimizer of a network that has its own, while the one that it is named after has none.

    known: names of what is imported, and of functions and classes.
    """
    made = [part for part in parts if isinstance(part, ast.Assign) and len(part.targets) == 1]
    held = [(dotted(one.targets[0]), network, one.value) for one in made if (network := whole_network(one.value))]
    names = {dotted(one.targets[0]) for one in made if any(called_name(part)[:1].isupper() for part in walk(one.value))}
    names |= {a.arg for a in scope.args.args} if isinstance(scope, ast.FunctionDef) else set()
    names |= {dotted(part.func.value) for part in parts if is_parameters(part)}  # type: ignore[attr-defined]
    called = {dotted(part.func) for part in parts if isinstance(part, ast.Call)} - {""}
    names |= {one for one in called if one.split(".")[0] not in known and one.split(".")[-1] not in DETACHED | OF_ONE}
    for name, network, call in held:
        own = any(other == network and another != name and alike(another, network) for another, other, _ in held)
        if not own or alike(name, network):
            continue
        meant = [one for one in names if one != name and not OPTIMIZED.search(one) and alike(name, one)]
        given = [part for part in parts if isinstance(part, (ast.Assign, ast.AugAssign)) and mentions(part, meant)]
        if len(meant) == 1 and all(name in map(dotted, getattr(one, "targets", [])) for one in given):
            yield call


OPTIMIZED = re.compile(r"opt|sched|loss|criterion", re.I)
"""Names of what is no network."""


def is_parameters(node: ast.AST) -> bool:
    """`network.parameters()`."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "parameters"


def mentions(node: ast.AST, networks: list[str]) -> bool:
    """Whether something is made of the weights of one of these networks, and not of what clips them."""
    clipped = {id(part) for call in walk(node) if called_name(call) in CLIPS for part in walk(call)}
    weights = [part for part in walk(node) if is_parameters(part) and id(part) not in clipped]
    return any(dotted(part.func.value) in networks for part in weights)  # type: ignore[attr-defined]


def whole_network(node: ast.expr) -> str:
    """The name of the network of which a call makes an optimizer, where it gives it all weights and nothing else."""
    given = node.args[0] if isinstance(node, ast.Call) and node.args and OPTIMIZER.match(called_name(node)) else None
    func = given.func if isinstance(given, ast.Call) and not given.args else None
    return dotted(func.value) if isinstance(func, ast.Attribute) and func.attr == "parameters" else ""


def alike(one: str, two: str) -> bool:
    """Whether two names tell the same object apart from others: `optimizer_D` and `netD`, or `discriminator`."""
    first, second = (
        [w for w in map(str.lower, WORDS.findall(n.split(".")[-1])) if not GENERAL.fullmatch(w)] for n in (one, two)
    )
    pairs = list(zip_longest(first, second, fillvalue=""))
    return bool(pairs) and all(a and b and (a.startswith(b) or b.startswith(a)) for a, b in pairs)
