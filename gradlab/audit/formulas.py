"""From the test of an `if` to a formula: flags, periods, checks for None and for finite numbers."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from gradlab.audit.conditions import FALSE, TRUE, WINDOW, Atom, Formula, joined, negation
from gradlab.audit.known import dotted
from gradlab.audit.values import Value
from gradlab.audit.walking import walk

if TYPE_CHECKING:
    from gradlab.audit.interpreter import Interpreter

MADE = {
    "optimizer",
    "scaler",
    "scheduler",
    "model",
    "ddp",
    "tensor",
    "accelerator",
    "fabric",
    "loader",
    "list",
    "params",
}
FINITE = re.compile(r"(?<!in)(?<!de)finite|isnan|isinf|is_nan|nan|inf\b|overflow|found_inf", re.I)
LAST = re.compile(r"\blen\(|last|total|num_batches|n_batches|\bend\b")


def formula(it: Interpreter, node: ast.expr) -> Formula:
    """Calls in the test were followed when its value was asked for, and are not followed again."""
    frozen, it.frozen = it.frozen, True
    try:
        return made(it, node)
    finally:
        it.frozen = frozen


def made(it: Interpreter, node: ast.expr) -> Formula:
    if isinstance(node, ast.BoolOp):
        return joined("and" if isinstance(node.op, ast.And) else "or", [formula(it, value) for value in node.values])
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return negation(formula(it, node.operand))
    if isinstance(node, ast.Constant):
        return TRUE if node.value else FALSE
    if isinstance(node, ast.Compare):
        if len(node.ops) > 1:  # a < b < c
            ends = [node.left, *node.comparators]
            pairs = [ast.Compare(one, [op], [two]) for one, op, two in zip(ends, node.ops, ends[1:])]
            return joined("and", [formula(it, pair) for pair in pairs])
        left, right, op = node.left, node.comparators[0], node.ops[0]
        if isinstance(right, ast.Constant) and isinstance(op, (ast.Is, ast.IsNot, ast.Eq, ast.NotEq)):
            other = isinstance(op, (ast.IsNot, ast.NotEq))
            if right.value is None:
                there = present(it.value(left))
                return there if other else negation(there)
            if isinstance(right.value, bool):  # x == False
                there = formula(it, left)
                return there if right.value != other else negation(there)
        return comparison(it, node)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
        return comparison(it, node)
    if isinstance(node, (ast.Name, ast.Attribute)):
        return truthy(it.value(node), ast.unparse(node))
    if isinstance(node, ast.Call) and dotted(node.func) == "isinstance" and len(node.args) == 2:
        known = of_class(it.value(node.args[0]), it.value(node.args[1]))
        if known is not None:
            return TRUE if known else FALSE
    value = it.value(node)
    if value.kind == "bool":
        return value.data["formula"]
    finite = FINITE.search(ast.unparse(node)) or value.data.get("finite")
    return ("atom", Atom(canonical(it, node), youngest(it, node), "finite" if finite else "flag"))


def of_class(value: Value, kind: Value) -> bool | None:
    """Whether a value is an instance of a class of the project; None where that is not known."""
    if kind.kind != "class" or "choice" in value.data:
        return None
    if "lineage" in value.data:
        return kind.data["node"] in value.data["lineage"] or (None if value.data.get("framework") else False)
    return False if value.kind in MADE and value.data.get("call") is not None else None


def truthy(value: Value, text: str) -> Formula:
    if value.kind == "bool":
        return value.data["formula"]
    if value.kind in ("none",):
        return FALSE
    if value.kind == "number" and value.data.get("value") is not None and value.birth == 0:
        return TRUE if value.data["value"] else FALSE
    if "choice" in value.data or value.kind in MADE:
        return present(value)
    kind = "finite" if FINITE.search(text) or value.data.get("finite") else "flag"
    return ("atom", Atom(f"{value.name or text}#{value.number}", value.birth, kind))


def present(value: Value) -> Formula:
    """That a value is not None."""
    if "choice" in value.data:
        return joined("or", [joined("and", [when, present(item)]) for when, item in value.data["choice"]])
    if value.kind == "none":
        return FALSE
    if value.kind == "gradient":  # where it is missing there is nothing to be done
        return TRUE
    if value.kind in MADE and not value.data.get("given"):
        return TRUE
    return ("atom", Atom(f"{value.name}#{value.number} is not None", value.birth))


def comparison(it: Interpreter, node: ast.expr) -> Formula:
    text = ast.unparse(node)
    periods: set[str] = set()
    at = arithmetic(it, node, periods)
    key, birth = canonical(it, node), youngest(it, node)
    if FINITE.search(text):
        return ("atom", Atom(key, birth, "finite"))
    if isinstance(node, ast.BinOp):  # i % n, as a truth value
        text += " != 0"
    modulo = any(isinstance(part, ast.BinOp) and isinstance(part.op, ast.Mod) for part in walk(node))
    if at is not None and modulo and len(periods) <= 1:
        inverted = isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.NotEq)
        period = next(iter(periods), "")
        if isinstance(node, ast.BinOp):
            return ("atom", Atom(key, birth, "period", period, lambda k: bool(at(k))))
        if inverted:
            return ("not", ("atom", Atom(key.replace("!=", "=="), birth, "period", period, lambda k: not at(k))))
        return ("atom", Atom(key, birth, "period", period, lambda k: bool(at(k))))
    if (
        isinstance(node, ast.Compare)
        and not modulo
        and any(value.kind == "index" for value in parts(it, node))
        and (LAST.search(text) or any(value.data.get("length") for value in parts(it, node)))
    ):
        atom = ("atom", Atom(key.replace("!=", "==").replace("<", ">="), birth, "last"))
        return negation(atom) if isinstance(node.ops[0], (ast.NotEq, ast.Lt)) else atom
    if isinstance(node, ast.Compare) and re.search(r"norm|loss", text):
        return ("atom", Atom(key, birth, "finite"))
    if isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.NotEq, ast.IsNot)):
        return ("not", ("atom", Atom(key.replace("!=", "=="), birth, subject=subject(it, node))))
    return ("atom", Atom(key, birth, subject=subject(it, node)))


def subject(it: Interpreter, node: ast.expr) -> str:
    """The left side of a comparison for equality with a constant or a member of an enumeration, SOME.NAME."""
    if not isinstance(node, ast.Compare) or not isinstance(node.ops[0], (ast.Eq, ast.Is, ast.NotEq, ast.IsNot)):
        return ""
    right = node.comparators[0]
    constant = isinstance(right, ast.Constant) or (isinstance(right, ast.Attribute) and right.attr.isupper())
    return canonical(it, node.left) if constant else ""


def arithmetic(it: Interpreter, node: ast.expr, periods: set[str]):
    """A function of the iteration's number, where every part is a number, the loop's index or the period."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return lambda k: node.value
    if isinstance(node, ast.BinOp):
        left = arithmetic(it, node.left, periods if not isinstance(node.op, ast.Mod) else set())
        inner: set[str] = set()
        right = arithmetic(it, node.right, inner if isinstance(node.op, ast.Mod) else periods)
        if isinstance(node.op, ast.Mod):
            if isinstance(node.right, ast.Constant):
                inner = {str(node.right.value)}
            if inner == {"1"}:
                return None
            periods |= inner
        if left is None or right is None:
            return None
        if isinstance(node.op, ast.Add):
            return lambda k: left(k) + right(k)
        if isinstance(node.op, ast.Sub):
            return lambda k: left(k) - right(k)
        if isinstance(node.op, ast.Mod):
            return lambda k: left(k) % right(k) if right(k) else 0
        return None
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        one, two = arithmetic(it, node.left, periods), arithmetic(it, node.comparators[0], periods)
        if one is None or two is None:
            return None
        if isinstance(node.ops[0], ast.Eq):
            return lambda k: one(k) == two(k)
        if isinstance(node.ops[0], ast.NotEq):
            return lambda k: one(k) != two(k)
        if isinstance(node.ops[0], ast.Gt):
            return lambda k: one(k) > two(k)
        return None
    if isinstance(node, (ast.Name, ast.Attribute)):
        value = it.value(node)
        if value.kind == "index":
            return lambda k: k + value.data["offset"]
        if (value.kind in ("number", "unknown") and value.birth <= it.entered) or value.kind == "number":
            periods.add(f"{value.name}#{value.number}")
            return lambda k: WINDOW
    return None


def canonical(it: Interpreter, node: ast.AST) -> str:
    """The text of an expression with every name replaced by the value that it is bound to, so that aliases agree."""
    if isinstance(node, (ast.Name, ast.Attribute)):
        value = it.value(node)
        if value.kind == "number" and not value.name:
            return repr(value.data.get("value"))
        if value.kind == "index":
            return f"index+{value.data['offset']}"
        if value.kind in ("external", "function"):
            return value.name
        if value.kind == "method" and (owner := value.data.get("self")) is not None:
            return f"{owner.name}#{owner.number}.{value.name}"
        return f"{value.name}#{value.number}"
    if isinstance(node, ast.Constant):
        return repr(node.value)
    if isinstance(node, ast.Call):
        return f"{canonical(it, node.func)}({', '.join(canonical(it, a) for a in node.args)})"
    parts = [canonical(it, child) for child in ast.iter_child_nodes(node) if not isinstance(child, ast.expr_context)]
    signs = {"Mod": "%", "Eq": "==", "NotEq": "!=", "Add": "+", "Sub": "-", "Lt": "<", "Div": "/", "Mult": "*"}
    name = type(node).__name__
    return signs.get(name, name) if not parts else f"{name}({', '.join(parts)})"


def youngest(it: Interpreter, node: ast.AST) -> int:
    return max((value.birth for value in parts(it, node)), default=0)


def parts(it: Interpreter, node: ast.AST) -> list[Value]:
    """The values of the names in an expression, without following its calls again."""
    return [it.value(part) for part in walk(node) if isinstance(part, ast.Name)] + [
        it.value(part) for part in walk(node) if isinstance(part, ast.Attribute) and dotted(part)
    ]
