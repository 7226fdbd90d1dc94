"""Deep stacks of layers that saturate: written out, assembled in a loop, or called one after the other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from gradlab.audit.rules.registry import text_rule
from gradlab.audit.source.project import Module
from gradlab.audit.source.syntax import called_name, dotted, text, walk

DEEP = 8
"""Layers of a deep stack; of sigmoids, whose slope is a quarter at most, `STEEP` are enough."""
STEEP = 5
SATURATES = re.compile(r"\b(Sigmoid|Tanh)\(")
EASES = re.compile(r"Norm|Residual|Block")
"""Layers that keep gradients from vanishing, or may."""
Scope = ast.Module | ast.FunctionDef


@text_rule("GL806")
def saturating(module: Module) -> Iterator[ast.AST]:
    tree = module.source.tree
    if not isinstance(tree, ast.Module) or not re.search(r"sigmoid|tanh", module.source.text, re.I):
        return
    numbers = constants(tree.body)
    for node in module.source.nodes.of(ast.Call):
        if called_name(node) == "Sequential" and (written_out(node) or any(deep(a, numbers) for a in starred(node))):
            yield node
    scopes: list[Scope] = [tree, *module.source.nodes.of(ast.FunctionDef)]
    for scope in scopes:
        yield from in_loops(scope, numbers | given(scope))
    for each in module.source.nodes.of(ast.ClassDef):
        yield from in_turn(each, numbers)


def starred(node: ast.Call) -> list[ast.expr]:
    """What a call expands with `*`."""
    return [a.value for a in node.args if isinstance(a, ast.Starred)]


def constants(body: list[ast.stmt]) -> dict[str, float]:
    """Names that are assigned a number, once."""
    found: dict[str, list[float | None]] = {}
    for node in body:
        for target in node.targets if isinstance(node, ast.Assign) else ():
            found.setdefault(dotted(target), []).append(number(node.value, {}))  # type: ignore[attr-defined]
    return {name: values[0] for name, values in found.items() if len(values) == 1 and values[0] is not None}


def given(scope: Scope) -> dict[str, float]:
    """Numbers that parameters have by default, and local names."""
    if isinstance(scope, ast.Module):
        return {}
    plain = scope.args.args[len(scope.args.args) - len(scope.args.defaults) :]
    known = {a.arg: number(d, {}) for a, d in zip(plain, scope.args.defaults)}
    return {name: n for name, n in known.items() if n is not None} | constants(scope.body)


def number(node: ast.AST, numbers: dict[str, float]) -> float | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)) and not isinstance(node.value, bool):
        return float(node.value)
    return numbers.get(dotted(node)) if isinstance(node, (ast.Name, ast.Attribute)) else None


def turns(over: ast.expr, numbers: dict[str, float]) -> float:
    """How many iterations a loop over range() has; 0 where that is not known."""
    if called_name(over) != "range" or not isinstance(over, ast.Call) or not over.args:
        return 0
    known = [number(a, numbers) for a in over.args]
    first, last, step = [0.0, known[0], 1.0] if len(known) == 1 else [*known, 1.0][:3]
    return 0 if first is None or last is None or not step else (last - first) // step


def written_out(node: ast.Call) -> bool:
    names = [called_name(a) for a in node.args]
    many = sum(n in ("Sigmoid", "Tanh") for n in names) >= DEEP or names.count("Sigmoid") >= STEEP
    return many and not any("Norm" in n for n in names)


def saturates(parts: list[ast.AST]) -> bool:
    source = " ".join(text(part) for part in parts)
    return bool(SATURATES.search(source)) and not EASES.search(source)


def deep(node: ast.AST, numbers: dict[str, float]) -> bool:
    """A comprehension over a number of layers."""
    if not isinstance(node, (ast.ListComp, ast.GeneratorExp)) or len(node.generators) != 1:
        return False
    return turns(node.generators[0].iter, numbers) >= DEEP and saturates([node.elt])


def in_loops(scope: Scope, numbers: dict[str, float]) -> Iterator[ast.AST]:
    """Sequential(*layers), with layers assembled in a loop of this scope."""
    inside = [n for part in scope.body if not isinstance(part, (ast.FunctionDef, ast.ClassDef)) for n in walk(part)]
    for node in inside:
        if not isinstance(node, ast.Call) or called_name(node) != "Sequential":
            continue
        if not (name := next((name for a in starred(node) if (name := dotted(a))), "")):
            continue
        made = [n.lineno for n in inside if isinstance(n, ast.Assign) and name in map(dotted, n.targets)]
        since = max((line for line in made if line < node.lineno), default=0)
        for loop in inside:
            if isinstance(loop, ast.For) and since <= loop.lineno < node.lineno and turns(loop.iter, numbers) >= DEEP:
                body = " ".join(text(part) for part in loop.body)
                if saturates(list(loop.body)) and re.search(rf"\b{re.escape(name)}\b", body):
                    yield node


def in_turn(each: ast.ClassDef, numbers: dict[str, float]) -> Iterator[ast.AST]:
    """A ModuleList of linear layers, each called within a sigmoid or tanh and nothing else."""
    methods = {m.name: m for m in each.body if isinstance(m, ast.FunctionDef)}
    if "__init__" not in methods or "forward" not in methods:
        return
    called = {
        dotted(loop.iter)
        for loop in walk(methods["forward"])
        if isinstance(loop, ast.For) and len(loop.body) == 1 and squashed(loop.body[0], dotted(loop.target))
    }
    numbers = numbers | given(methods["__init__"])
    for node in walk(methods["__init__"]):
        made = node.value if isinstance(node, ast.Assign) and dotted(node.targets[0]) in called - {""} else None
        if isinstance(made, ast.Call) and called_name(made) == "ModuleList" and made.args:
            layers = made.args[0]
            if isinstance(layers, (ast.ListComp, ast.GeneratorExp)) and len(layers.generators) == 1:
                linear = re.fullmatch(r"Linear|Conv[123]d", called_name(layers.elt))
                if linear and turns(layers.generators[0].iter, numbers) >= DEEP:
                    yield made


def squashed(node: ast.stmt, layer: str) -> bool:
    """`x = torch.tanh(layer(x))`."""
    value = node.value if isinstance(node, ast.Assign) else None
    if not isinstance(value, ast.Call) or called_name(value) not in ("sigmoid", "tanh"):
        return False
    inner = value.args[0] if value.args else value.func.value if isinstance(value.func, ast.Attribute) else None
    return isinstance(inner, ast.Call) and dotted(inner.func) == layer
