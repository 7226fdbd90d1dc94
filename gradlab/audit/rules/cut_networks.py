"""Networks that cut their own graph: a layer's result without it goes on to the next layers."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator, Mapping

from gradlab.audit.knowledge.known_names import MODULES
from gradlab.audit.rules.registry import text_rule
from gradlab.audit.source.project import Function, Module, methods_of
from gradlab.audit.source.syntax import dotted, walk

WEIGHTS = re.compile(r"\bnn\.(Linear|Conv\w*\dd|Embedding|LSTM|GRU|RNN|Transformer\w+|MultiheadAttention|Bilinear)\(")
"""What makes a layer with weights, alone or in a stack."""
WITHOUT = re.compile(r"\bno_grad|inference_mode")
LOSS = re.compile(r"cross_entropy$|loss(_?(fn|fct|func))?$|criterion$", re.I)
MEANT = re.compile(
    r"requires_grad|fr[eo]ez|frozen|\.eval\(|load_state_dict|momentum|\bema\b|\.copy_\(|stop_?grad", re.I
)
"""What says that layers of a class, or gradients in it, are to stop."""


@text_rule("GL712")
def layer_cut_off(module: Module) -> Iterator[ast.AST]:
    if "def forward" not in module.source.text or not re.search(r"detach\(|no_grad|inference_mode", module.source.text):
        return
    paths = [dotted(n) for n in module.source.nodes.of(ast.Attribute)]
    elsewhere = {name for path in paths if not path.startswith("self.") for name in path.split(".")[1:-1]}
    elsewhere |= {dotted(n.func).split(".")[-1] for n in module.source.nodes.of(ast.Call) if layer_of(n) == ""}
    for owner in module.source.nodes.of(ast.ClassDef):
        methods = methods_of(owner)
        if "forward" in methods and "__init__" in methods and any(MODULES.search(dotted(b)) for b in owner.bases):
            made = layers(methods["__init__"], {**module.names, **methods})
            used = Counter(dotted(n) for n in walk(owner) if isinstance(n, ast.Attribute))
            once = {name for name in made if used[f"self.{name}"] == 2} - elsewhere  # where it is made, and here
            if not MEANT.search(ast.unparse(owner)):
                yield from cuts(methods["forward"], made, once)


def layers(init: Function, known: Mapping[str, ast.AST]) -> dict[str, str]:
    """The texts of the layers that are made in __init__, and of the classes and methods that make them, by name."""
    found: dict[str, str] = {}
    for target, value in (pair for node in init.body if isinstance(node, ast.Assign) for pair in pairs(node)):
        owner, _, name = dotted(target).rpartition(".")
        if owner == "self" and isinstance(value, ast.Call):
            makers = {p.attr if isinstance(p, ast.Attribute) else getattr(p, "id", "") for p in walk(value)}
            texts = [ast.unparse(known[maker]) for maker in sorted(makers) if maker in known]
            found[name] = "\n".join([ast.unparse(value), *texts])
    return found


def pairs(node: ast.Assign) -> list[tuple[ast.expr, ast.expr]]:
    """What an assignment binds to what, one by one: `self.a, self.b = A(), B()`."""
    target = node.targets[0]
    if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
        return list(zip(target.elts, node.value.elts))
    return [(target, node.value)]


def cuts(forward: Function, made: dict[str, str], once: set[str]) -> Iterator[ast.AST]:
    """Where a result of a layer that is called nowhere else loses its graph, and the next layer receives it."""
    learnt: set[str] = set()  # names of what comes from a layer with weights
    for i, statement in enumerate(forward.body):
        without = isinstance(statement, ast.With) and WITHOUT.search(ast.unparse(statement.items[0]))
        for one in statement.body if isinstance(statement, ast.With) else [statement]:
            target = one.targets[0] if isinstance(one, ast.Assign) else None
            if isinstance(one, ast.Assign) and isinstance(target, ast.Name):
                call, detached = one.value, undetached(one, forward.body[i - 1 : i])
                name = layer_of(detached or call)
                weights = WEIGHTS.search(made.get(name, "")) or names(one.value) & learnt
                if (without or detached) and weights and name in once:
                    if goes_on(target.id, name, forward.body[i + 1 :], made):
                        yield one
        learnt |= from_layers(statement, made, learnt)


def from_layers(statement: ast.stmt, made: dict[str, str], learnt: set[str]) -> set[str]:
    """The names that a statement binds to what comes from a layer with weights."""
    weights = any(WEIGHTS.search(made.get(layer_of(n), "")) for n in walk(statement) if isinstance(n, ast.Call))
    if not weights and not names(statement) & learnt:
        return set()
    return {n.id for n in walk(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


def names(node: ast.AST) -> set[str]:
    return {part.id for part in walk(node) if isinstance(part, ast.Name)}


def undetached(made: ast.Assign, before: list[ast.stmt]) -> ast.Call | None:
    """`layer(x)` of `layer(x).detach()`, and of `x = layer(x)` with `x = x.detach()` right behind it."""
    func = made.value.func if isinstance(made.value, ast.Call) else None
    result = func.value if isinstance(func, ast.Attribute) and func.attr == "detach" else None
    name = dotted(made.targets[0])
    if isinstance(result, ast.Name) and result.id == name and before and isinstance(before[0], ast.Assign):
        result = before[0].value if dotted(before[0].targets[0]) == name else None
    return result if isinstance(result, ast.Call) else None


def layer_of(node: ast.expr) -> str:
    """The name of the layer of `self.layer(x)`."""
    owner, _, name = dotted(node.func).rpartition(".") if isinstance(node, ast.Call) else ("", "", "")
    return name if owner == "self" else ""


def goes_on(name: str, layer: str, rest: list[ast.stmt], made: dict[str, str]) -> bool:
    """Whether another layer, or a loss function, receives a result, in a statement that has a graph."""
    held = {name}  # the names of what is computed from it
    for statement in rest:
        if isinstance(statement, ast.With):
            continue
        stacked = set()  # the layers of a list, one after the other
        if isinstance(statement, ast.For) and any(f"self.{other}" in ast.unparse(statement.iter) for other in made):
            stacked = names(statement.target)
        for call in (n for n in walk(statement) if isinstance(n, ast.Call)):
            another = layer_of(call) in made and layer_of(call) != layer
            if another or dotted(call.func) in stacked or LOSS.search(dotted(call.func)):
                if any(names(argument) & held for argument in call.args):
                    return True
        for one in (n for n in walk(statement) if isinstance(n, ast.Assign)):
            targets = {p.id for t in one.targets for p in walk(t) if isinstance(p, ast.Name)}
            held = held | targets if names(one.value) & held else held - targets
    return False
