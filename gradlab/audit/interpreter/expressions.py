"""Expressions: what they stand for, and the events of the calls in them."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import TYPE_CHECKING

from gradlab.audit.interpreter import calls
from gradlab.audit.interpreter.branch_conditions import formula
from gradlab.audit.interpreter.canonical_text import canonical
from gradlab.audit.interpreter.choices import choice
from gradlab.audit.interpreter.containers import of_Dict, of_DictComp, of_ListComp, of_Starred, of_Subscript, of_Tuple
from gradlab.audit.interpreter.name_lookup import attribute, named
from gradlab.audit.knowledge.tensor_arithmetic import combined
from gradlab.audit.trace.conditions import FALSE, TRUE, negation
from gradlab.audit.trace.events import If
from gradlab.audit.trace.values import Value, number, several

if TYPE_CHECKING:
    from gradlab.audit.interpreter.interpreter import Interpreter


def of_Constant(it: Interpreter, node: ast.Constant) -> Value:
    if node.value is None:
        return Value("none", "None", birth=0)
    return Value("number", "", {"value": node.value}, birth=0)


def of_Name(it: Interpreter, node: ast.Name) -> Value:
    return named(it, node.id)


def of_Attribute(it: Interpreter, node: ast.Attribute) -> Value:
    return attribute(it, it.value(node.value), node.attr, node)


def of_Lambda(it: Interpreter, node: ast.Lambda) -> Value:
    return Value("lambda", data={"node": node, "scope": it.scope})


def of_NamedExpr(it: Interpreter, node: ast.NamedExpr) -> Value:
    value = it.value(node.value)
    it.scope.names[node.target.id] = value
    return value


def of_Await(it: Interpreter, node: ast.Await) -> Value:
    return it.value(node.value)


def of_Yield(it: Interpreter, node: ast.Yield | ast.YieldFrom) -> Value:
    it.emit("yield", node, it.value(node.value) if node.value is not None else None)
    return Value()


def of_IfExp(it: Interpreter, node: ast.IfExp) -> Value:
    it.value(node.test)
    test = formula(it, node.test)
    out, branches = it.out, []
    for part in (node.body, node.orelse):
        it.out = []
        branches.append((it.value(part), it.out))
    it.out = out
    if branches[0][1] or branches[1][1]:
        it.out.append(If(test, branches[0][1], branches[1][1]))
    if test == TRUE:
        return branches[0][0]
    if test == FALSE:
        return branches[1][0]
    return choice([(test, branches[0][0]), (negation(test), branches[1][0])])


def of_BoolOp(it: Interpreter, node: ast.BoolOp) -> Value:
    values = [it.value(part) for part in node.values]
    if isinstance(node.op, ast.Or) and any(
        v.kind not in ("unknown", "bool", "number", "none", "tensor") for v in values
    ):
        return next(v for v in values if v.kind not in ("unknown", "bool", "number", "none", "tensor"))
    return Value("bool", data={"formula": formula(it, node)})


def of_Compare(it: Interpreter, node: ast.Compare) -> Value:
    it.value(node.left)
    for part in node.comparators:
        it.value(part)
    return Value("bool", data={"formula": formula(it, node)})


def of_UnaryOp(it: Interpreter, node: ast.UnaryOp) -> Value:
    value = it.value(node.operand)
    if isinstance(node.op, ast.Not):
        return Value("bool", data={"formula": formula(it, node)})
    if value.kind == "number" and isinstance(node.op, ast.USub) and isinstance(value.data["value"], (int, float)):
        return number(-value.data["value"])
    return value


def of_BinOp(it: Interpreter, node: ast.BinOp) -> Value:
    left, right = it.value(node.left), it.value(node.right)
    if isinstance(node.op, ast.Mod) and left.kind == "index":
        return Value("bool", data={"formula": formula(it, node)})
    if isinstance(node.op, (ast.Add, ast.Sub)) and left.kind == "index" and right.kind == "number":
        sign = 1 if isinstance(node.op, ast.Add) else -1
        if isinstance(right.data["value"], int):
            return Value("index", left.name, {**left.data, "offset": left.data["offset"] + sign * right.data["value"]})
    if left.kind == "list" and right.kind == "list" and isinstance(node.op, ast.Add):
        return several([*left.data["items"], *right.data["items"]])
    if left.kind == "params" or right.kind == "params":
        return left if left.kind == "params" else right
    if left.kind != "tensor" and right.kind != "tensor":  # the same of the same is the same
        return it.results.setdefault(canonical(it, node), Value())
    return combined(it, node.op, left, right, node.right, node.left)


def of_Call(it: Interpreter, node: ast.Call) -> Value:
    return calls.call(it, node)


WORK: dict[str, Callable] = {
    "Constant": of_Constant,
    "Name": of_Name,
    "Attribute": of_Attribute,
    "Subscript": of_Subscript,
    "Tuple": of_Tuple,
    "Starred": of_Starred,
    "Lambda": of_Lambda,
    "NamedExpr": of_NamedExpr,
    "Await": of_Await,
    "Yield": of_Yield,
    "YieldFrom": of_Yield,
    "IfExp": of_IfExp,
    "BoolOp": of_BoolOp,
    "Compare": of_Compare,
    "UnaryOp": of_UnaryOp,
    "BinOp": of_BinOp,
    "ListComp": of_ListComp,
    "DictComp": of_DictComp,
    "Dict": of_Dict,
    "Call": of_Call,
    "GeneratorExp": of_ListComp,
    "SetComp": of_ListComp,
    "List": of_Tuple,
}
