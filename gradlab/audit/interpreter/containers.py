"""Lists, dictionaries and comprehensions, and their parts."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from gradlab.audit.interpreter.binding import bind, element
from gradlab.audit.knowledge import known_names
from gradlab.audit.source.syntax import dotted
from gradlab.audit.trace.scope import Scope, usage
from gradlab.audit.trace.values import Value, several

if TYPE_CHECKING:
    from gradlab.audit.interpreter.interpreter import Interpreter


PREDICTION = re.compile(r"prob|pred|logit|out|score|hat", re.I)
"""Keys of what a network says; other entries of what it gives may be anything."""


def of_Subscript(it: Interpreter, node: ast.Subscript) -> Value:
    value = it.value(node.value)
    if not isinstance(node.slice, ast.Slice):
        it.value(node.slice)
    if value.kind == "list" and isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, int):
        items = value.data["items"]
        last = items[-1] if items and items[-1].kind == "tensor" else Value()
        return items[node.slice.value] if -len(items) <= node.slice.value < len(items) else last
    if value.kind in ("optimizer", "scheduler"):  # a list of them, which one stands for
        return value
    if value.kind == "group":
        return Value("params", data={"of": value.data.get("of")})
    key = f"[{ast.unparse(node.slice)}]"
    if value.kind == "tensor" and key not in value.attributes:
        text = ast.unparse(node.slice)
        named = isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str) and "loss" not in text
        made = Value("tensor", "", {**value.data, "made_of": (), "unsure": named or value.data.get("unsure", False)})
        if named and not PREDICTION.search(text):
            made.data["range"] = ""  # how many there were, perhaps
        return made
    if key not in value.attributes:
        made = Value("unknown", f"{value.name}{key}", {"given": True}, birth=value.birth)
        if isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str):
            made.kind = known_names.by_name(node.slice.value) or "unknown"
        elif value.kind == "unknown" and {"step", "zero_grad"} <= usage(it.scope.node).items.get(
            dotted(node.value), set()
        ):
            made.kind = "optimizer"
        value.attributes[key] = made
    return value.attributes[key]


def of_Tuple(it: Interpreter, node: ast.Tuple | ast.List) -> Value:
    return several([it.value(item) for item in node.elts])


def of_Starred(it: Interpreter, node: ast.Starred) -> Value:
    return it.value(node.value)


def of_ListComp(it: Interpreter, node: ast.ListComp | ast.GeneratorExp | ast.SetComp) -> Value:
    outer, it.scope = it.scope, Scope(it.scope, it.scope.node, it.module)
    try:
        for generator in node.generators:
            over = it.value(generator.iter)
            bind(it, generator.target, element(it, generator.iter, over))
            for test in generator.ifs:
                it.value(test)
        value = it.value(node.elt)
    finally:
        it.scope = outer
    if value.kind == "param":
        some = value.data.get("some") or any(generator.ifs for generator in node.generators)
        return Value("params", data={**value.data, "some": some})
    if value.kind == "gradient":
        it.emit("taken", node, value)
        return Value("gradients", data=dict(value.data))
    if value.kind in ("params", "tensor", "optimizer", "scheduler"):
        return value
    return Value()


def of_DictComp(it: Interpreter, node: ast.DictComp) -> Value:
    return Value()


def of_Dict(it: Interpreter, node: ast.Dict) -> Value:
    value = Value("dict")
    items = []
    for key, part in zip(node.keys, node.values):
        item = it.value(part)
        items.append(item)
        if isinstance(key, ast.Constant):
            value.attributes[f"[{key.value!r}]"] = item
    kinds = {v.kind for v in items}
    if "params" in kinds and not kinds & {"optimizer", "model", "ddp", "scheduler", "scaler"}:  # a group of parameters
        return next(v for v in items if v.kind == "params")
    value.data["items"] = items
    return value
