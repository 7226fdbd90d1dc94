"""Functions of PyTorch that make tensors of tensors."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from gradlab.audit.knowledge import value_ranges
from gradlab.audit.trace.values import Value, members, tensor

if TYPE_CHECKING:
    from gradlab.audit.interpreter.interpreter import Interpreter


JOINED = {"where", "cat", "stack", "maximum", "minimum", "concat"}
"""Functions whose result takes its values from one or the other tensor."""


def of_torch(it: Interpreter, node: ast.Call, name: str, args: list[Value], keywords: dict[str, Value]) -> Value:
    tail = name.split(".")[-1]
    if "autograd" in name:
        if tail == "backward":
            it.emit("backward", node, args[0] if args else None)
        return derivatives() if tail == "grad" else Value()
    if "norm" in tail and any(v.kind in ("gradient", "gradients") for v in args):
        it.emit("look", node)
        return Value("measured")
    if marks := frozenset().union(*(a.data.get("marks", frozenset()) for a in args)):
        return tensor(roots=marks, factors=[], opaque=True)
    inner = [v for a in args for v in members(a) if v.kind == "tensor"]
    if inner and not re.match(r"is|argmax|arg|eq|ne|no_grad|numel", tail):
        return of_tensors(it, node, tail, args, inner, len(args) > 1 or "dim" in keywords)
    if tail in ("no_grad", "inference_mode"):
        return Value("context", data={"word": "no_grad"})
    return Value("unknown", "", {"made": True})


def of_tensors(
    it: Interpreter, node: ast.Call, tail: str, args: list[Value], inner: list[Value], partial: bool
) -> Value:
    """`inner`: the tensors among the arguments, and in lists of them."""
    data = {**inner[0].data, "made_of": ()}
    data["roots"] = frozenset().union(*(v.data.get("roots", frozenset()) for v in inner))
    if tail == "sum":
        data["reduction"] = "sum"
    if tail == "mean" and not partial and data.get("reduction") == "none":
        data["reduction"] = "mean"
    if tail in ("sum", "mean") and not partial:
        data["one"] = True  # a number for the log
    first = inner[0] if inner[0] is args[0] else Value("tensor", "", {**data, "range": ""})
    if tail in JOINED:
        words = {v.data.get("range", "") for v in inner}
        first = Value("tensor", "", {**data, "range": words.pop() if len(words) == 1 else ""})
    if tail in value_ranges.PRODUCTS:
        first = Value("tensor", "", {**data, "range": value_ranges.product(inner)})
    changed = value_ranges.applied(it, node, tail, first, partial)
    data |= {**changed, "roots": data["roots"] | changed.get("roots", frozenset())}
    return Value("tensor", "", data)


def derivatives() -> Value:
    """Of a network with respect to its inputs, say: all of them zero at once in no practice."""
    return tensor(opaque=True, derivative=True)
