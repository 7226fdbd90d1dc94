"""Deep stacks of layers that saturate: written out, or assembled in a loop."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from gradlab.audit.rules.registry import text_rule
from gradlab.audit.source.project import Module
from gradlab.audit.source.syntax import called_name, defaults_of, dotted, text, walk

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
    numbers, blocks = constants(tree.body, {}), blocks_of(module)
    yield from (n for n in module.source.nodes.of(ast.Call) if called_name(n) == "Sequential" and written_out(n))
    scopes: list[Scope] = [tree, *module.source.nodes.of(ast.FunctionDef)]
    for scope in scopes:
        yield from stacked(scope, numbers | given(scope), blocks)


def starred(node: ast.Call) -> list[ast.expr]:
    """What a call expands with `*`."""
    return [a.value for a in node.args if isinstance(a, ast.Starred)]


def constants(body: list[ast.stmt], numbers: dict[str, float]) -> dict[str, float]:
    """Names that are assigned a number, or the name of one, once."""
    found: dict[str, list[float | None]] = {}
    for node in body:
        for target in node.targets if isinstance(node, ast.Assign) else ():
            found.setdefault(dotted(target), []).append(number(node.value, numbers))  # type: ignore[attr-defined]
    return {name: values[0] for name, values in found.items() if len(values) == 1 and values[0] is not None}


def given(scope: Scope) -> dict[str, float]:
    """Numbers that parameters have by default, and local names."""
    if isinstance(scope, ast.Module):
        return {}
    known = {name: number(d, {}) for name, d in defaults_of(scope).items() if d is not None}
    numbers = {name: n for name, n in known.items() if n is not None}
    return numbers | constants(scope.body, numbers)


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


def blocks_of(module: Module) -> dict[str, str]:
    """What the module's own functions and classes of one layer after the other make, as text, by their names."""
    functions = ((f.name, f.body[-1]) for f in module.source.nodes.of(ast.FunctionDef))
    found = {name: text(end.value) for name, end in functions if isinstance(end, ast.Return) and end.value is not None}
    return found | {each.name: layers(each) for each in module.source.nodes.of(ast.ClassDef)}


def layers(each: ast.ClassDef) -> str:
    """The text of what a network calls, where each result is given to the next call and to nothing else."""
    methods = {m.name: m for m in each.body if isinstance(m, ast.FunctionDef)}
    made = [n for n in walk(methods.get("__init__", each)) if isinstance(n, ast.Assign)]
    of = {dotted(n.targets[0]): text(n.value) for n in made}
    forward = methods.get("forward")
    if forward is None or len(forward.args.args) != 2:
        return ""
    results = {forward.args.args[1].arg: ""}
    for one in forward.body:
        target = one.targets[0] if isinstance(one, ast.Assign) else None
        through = passed(one.value, results) if isinstance(one, (ast.Assign, ast.Return)) and one.value else None
        if through is None:
            return ""
        results = {dotted(target) if target is not None else "": through}
    return " ".join(of.get(name, name.split(".")[-1].capitalize() + "()") for name in results.get("", "").split())


def passed(node: ast.expr, results: dict[str, str]) -> str | None:
    """The names of what is called on a result, the first one first; None where something else is done."""
    if dotted(node) in results:
        return results[dotted(node)]
    if not isinstance(node, ast.Call) or node.keywords or len(node.args) > 1:
        return None
    own = node.func.value if isinstance(node.func, ast.Attribute) and not node.args else None
    given = own or next(iter(node.args), None)
    inner = passed(given, results) if given is not None else None
    name = getattr(node.func, "attr", "") if own is not None else text(node.func)
    return None if inner is None or " " in name else f"{inner} {name}"


def saturates(parts: list[ast.AST], blocks: dict[str, str]) -> bool:
    source = " ".join(text(part) for part in parts)
    for name in {called_name(part) for one in parts for part in walk(one)} & {n for n, made in blocks.items() if made}:
        source = re.sub(rf"\b{name}\(", lambda _: f"({blocks[name]})(", source)  # noqa: B023
    return bool(SATURATES.search(source)) and not EASES.search(source)


def deep(node: ast.AST, numbers: dict[str, float], blocks: dict[str, str]) -> bool:
    """A comprehension over a number of layers."""
    if not isinstance(node, (ast.ListComp, ast.GeneratorExp)) or len(node.generators) != 1:
        return False
    return turns(node.generators[0].iter, numbers) >= DEEP and saturates([node.elt], blocks)


def stacked(scope: Scope, numbers: dict[str, float], blocks: dict[str, str]) -> Iterator[ast.AST]:
    """Sequential(*layers), with layers made by a comprehension, or in a loop of this scope."""
    inside = [n for part in scope.body if not isinstance(part, (ast.FunctionDef, ast.ClassDef)) for n in walk(part)]
    for node in inside:
        if not isinstance(node, ast.Call) or called_name(node) != "Sequential":
            continue
        if any(deep(a, numbers, blocks) for a in starred(node)):
            yield node
        if not (name := next((name for a in starred(node) if (name := dotted(a))), "")):
            continue
        made = [n.lineno for n in inside if isinstance(n, ast.Assign) and name in map(dotted, n.targets)]
        since = max((line for line in made if line < node.lineno), default=0)
        for loop in inside:
            if isinstance(loop, ast.For) and since <= loop.lineno < node.lineno and turns(loop.iter, numbers) >= DEEP:
                body = " ".join(text(part) for part in loop.body)
                if saturates(list(loop.body), blocks) and re.search(rf"\b{re.escape(name)}\b", body):
                    yield node
