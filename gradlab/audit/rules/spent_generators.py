"""Generators of parameters that are empty when they are clipped."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from gradlab.audit.rules.registry import loop_rule, text_rule
from gradlab.audit.source.project import Module
from gradlab.audit.source.syntax import called_name, dotted, walk
from gradlab.audit.trace.training_loop import TrainingLoop


@loop_rule("GL705")
def clip_of_nothing(loop: TrainingLoop) -> Iterator[tuple[str, ast.AST]]:
    """A generator of parameters is clipped that the optimizer, or an earlier clip, has gone through."""
    for event in loop.events:
        value = event.value
        if event.kind == "clip" and value is not None and value.kind == "params":
            again = loop.statement is not None or loop.self_contained
            if event.empty or (value.branches >= 0 and again and value.birth < loop.birth):
                yield event.path, event.node


@text_rule("GL705")
def second_pass(module: Module) -> Iterator[ast.AST]:
    """A function scales gradients in its second pass through its argument: a generator is over by then."""
    found = {n.name: n for n in module.names.values() if isinstance(n, ast.FunctionDef)}
    if re.search(r"def (named_)?parameters\b", module.source.text):
        return  # perhaps a list
    for call in module.source.nodes.of(ast.Call):
        function = found.get(call.func.id) if isinstance(call.func, ast.Name) else None
        if function is not None:
            given = [*zip((a.arg for a in function.args.args), call.args), *((k.arg, k.value) for k in call.keywords)]
            names = [name for name, part in given if called_name(part) in ("parameters", "named_parameters")]
            if any(name and scales_second(function, name) for name in names):
                yield call


def scales_second(function: ast.FunctionDef, name: str) -> bool:
    """Whether a loop over an argument changes gradients, after something that always goes through it as it is."""
    stored = [p for p in walk(function) if isinstance(p, ast.Name) and p.id == name and isinstance(p.ctx, ast.Store)]
    body = [] if stored else function.body
    always = [not isinstance(one, (ast.If, ast.Try)) and bool(passes(one, name)) for one in body]
    later = body[always.index(True) + 1 :] if any(always) else []
    return any(scales(loop) for one in later for loop in passes(one, name) if isinstance(loop, ast.For))


def passes(node: ast.AST, name: str) -> list[ast.AST]:
    """The loops and comprehensions over a name."""
    loops = (part for part in walk(node) if isinstance(part, (ast.For, ast.comprehension)))
    return [loop for loop in loops if dotted(loop.iter) == name]


def scales(loop: ast.For) -> bool:
    """Whether a loop changes gradients in place."""
    called = (part.func for part in walk(loop) if isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute))
    return any(re.fullmatch("(mul|div|copy|clamp)_", f.attr) and "grad" in ast.unparse(f.value) for f in called)
