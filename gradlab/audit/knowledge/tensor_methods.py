"""Methods of tensors, of parameters and of their gradients."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from gradlab.audit.interpreter.canonical_text import canonical
from gradlab.audit.knowledge import value_ranges
from gradlab.audit.knowledge.losses import descended
from gradlab.audit.knowledge.tensor_arithmetic import combined
from gradlab.audit.trace.values import Value

if TYPE_CHECKING:
    from gradlab.audit.interpreter.interpreter import Interpreter

DETACHED = {"item", "detach", "tolist", "numpy", "detach_", "data_ptr"} | {
    *("argmax", "argmin", "argsort", "eq", "ne", "gt", "lt", "ge", "le", "bool", "int", "long", "byte"),
    *("size", "dim", "numel", "isnan", "isinf", "isfinite"),
}  # and what has no gradient


MOVED = {"to", "cuda", "cpu", "float", "double", "half", "bfloat16", "clone", "requires_grad_"}


def of_tensor(it: Interpreter, node: ast.Call, owner: Value, name: str, args: list[Value]) -> Value:
    if name in DETACHED:
        if name == "detach_" and isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name):
            it.scope.names[node.func.value.id] = Value("detached")
        return Value("detached")
    if name in ("div", "div_", "mul", "mul_", "true_divide", "multiply", "divide") and args:
        op: ast.operator = ast.Div() if "div" in name else ast.Mult()
        made = combined(it, op, owner, args[0], node.args[0])
        if name.endswith("_"):
            owner.data.update(made.data)
        return made
    data = {**owner.data, "made_of": (owner,) if name in MOVED else ()}
    if name in ("sum", "nansum"):
        data["reduction"] = "sum"
    if name == "mean" and not args and data.get("reduction") == "none":
        data["reduction"] = "mean"
    if name in ("mean", "sum") and not args and not node.keywords:
        data["one"] = True  # a number for the log
    if name in value_ranges.PRODUCTS:
        return Value("tensor", "", data | {"range": value_ranges.product([owner, *args]), "linear": False})
    data |= value_ranges.applied(it, node, name, owner, bool(args) or bool(node.keywords))
    return Value("tensor", "", data)


def gradient(it: Interpreter, node: ast.Call, owner: Value, name: str, args: list[Value]) -> Value:
    if owner.kind == "gradient":
        if owner.data.get("guess") and name in ("zero_", "detach_", "clamp_", "clip_"):
            return Value()  # of an input, perhaps
        if name in ("zero_", "detach_", "fill_"):
            it.emit("zero", node, owner, by_hand=True)
        elif name in ("div_", "mul_") and args:
            it.emit("scale", node, owner, by=canonical(it, node.args[0]), factor=args[0], op=name)
        elif name in ("clamp_", "clip_"):
            it.emit("clip", node, owner, by_value=True, call=node)
        elif name in ("norm", "abs", "pow", "isnan", "isinf", "isfinite", "max", "mean", "std"):
            it.emit("look", node, owner)
        elif name in ("item", "tolist", "cpu", "numpy", "clone"):
            it.emit("taken", node, owner)
        if name in ("detach", "data", "float", "view", "flatten", "clone"):
            return owner
    elif owner.kind == "param" and name in ("add_", "sub_"):
        descended(it, node, owner, [*node.args, *(k.value for k in node.keywords)], name == "sub_")
    elif owner.kind == "param" and name == "copy_" and node.args and isinstance(node.args[0], ast.BinOp):
        descended(it, node, owner, node.args, isinstance(node.args[0].op, ast.Sub))
    elif owner.kind == "param" and name in ("detach", "view", "flatten"):
        return owner
    return Value("measured")
