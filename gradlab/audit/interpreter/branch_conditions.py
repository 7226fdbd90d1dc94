"""From the test of an `if` to a formula: flags, periods, checks for None and for finite numbers."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from gradlab.audit.interpreter.canonical_text import canonical, parts, youngest
from gradlab.audit.interpreter.loop_bounds import bounding, ending, since_first
from gradlab.audit.interpreter.window_periods import arithmetic, counted
from gradlab.audit.source.syntax import dotted, kinds
from gradlab.audit.source.syntax import text as written
from gradlab.audit.trace.conditions import FALSE, TRUE, Atom, Formula, joined, negation
from gradlab.audit.trace.values import Value

if TYPE_CHECKING:
    from gradlab.audit.interpreter.interpreter import Interpreter

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
NUMBERS = {"index", "detached", "measured"}
"""Kinds of what is a number or a tensor, and never None."""
FINITE = re.compile(r"(?<!in)(?<!de)finite|isnan|isinf|is_nan|nan|inf\b|overflow|found_inf", re.I)
DEEP = 3
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
        return truthy(it.value(node), written(node))
    if isinstance(node, ast.Call) and dotted(node.func) == "isinstance" and len(node.args) == 2:
        known = of_class(it.value(node.args[0]), it.value(node.args[1]))
        if known is not None:
            return TRUE if known else FALSE
    value = it.value(node)
    if value.kind == "bool":
        return value.data["formula"]
    finite = FINITE.search(written(node)) or value.data.get("finite")
    return (
        "atom",
        Atom(canonical(it, node), youngest(it, node), "finite" if finite else "flag", text=written(node)),
    )


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


def present(value: Value, depth: int = 0) -> Formula:
    """That a value is not None; of choices between choices between choices no more is told apart."""
    if "choice" in value.data and depth < DEEP:
        return joined("or", [joined("and", [when, present(item, depth + 1)]) for when, item in value.data["choice"]])
    if value.kind == "none":
        return FALSE
    if value.kind == "gradient":  # where it is missing there is nothing to be done
        return TRUE
    if value.kind in MADE and not value.data.get("given"):
        return TRUE
    if value.kind in NUMBERS or value.data.get("there"):
        return TRUE
    return ("atom", Atom(f"{value.name}#{value.number} is not None", value.birth))


def comparison(it: Interpreter, node: ast.expr) -> Formula:
    text = written(node)
    periods: set[str] = set()
    at = arithmetic(it, node, periods)
    used = parts(it, node)
    key, birth = canonical(it, node), max((value.birth for value in used), default=0)
    if not FINITE.search(text) and ast.Mod not in kinds(node) and not ending(it, node):
        count = counted(it, node)
        if count is not None and not (LAST.search(text) or any(value.data.get("length") for value in used)):
            first, negated = None if periods else since_first(at, used, count[1]), count[1]
            once = bounding(it, node)
            atom = ("atom", Atom(count[0], birth, at=first, subject=subject(it, node), once=once))
            return negation(atom) if negated else atom
    if FINITE.search(text):
        return ("atom", Atom(key, birth, "finite", text=text))
    if isinstance(node, ast.BinOp):  # i % n, as a truth value
        text += " != 0"
    modulo = ast.Mod in kinds(node)
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
        and any(value.kind == "index" for value in used)
        and (LAST.search(text) or any(value.data.get("length") for value in used))
    ):
        atom = ("atom", Atom(key.replace("!=", "==").replace("<", ">="), birth, "last"))
        return negation(atom) if isinstance(node.ops[0], (ast.NotEq, ast.Lt)) else atom
    if isinstance(node, ast.Compare) and re.search(r"norm|loss", text):
        return ("atom", Atom(key, birth, "finite"))
    ends = ending(it, node)
    if isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.NotEq, ast.IsNot)):
        return ("not", ("atom", Atom(key.replace("!=", "=="), birth, subject=subject(it, node), ends=ends)))
    if ends and isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Lt):
        return ("not", ("atom", Atom(key.replace("<", "=="), birth, ends=ends)))
    first = None if periods else since_first(at, used, False)
    return ("atom", Atom(key, birth, at=first, subject=subject(it, node), ends=ends, once=bounding(it, node)))


def subject(it: Interpreter, node: ast.expr) -> str:
    """The left side of a comparison for equality with a constant or a member of an enumeration, SOME.NAME."""
    if not isinstance(node, ast.Compare) or not isinstance(node.ops[0], (ast.Eq, ast.Is, ast.NotEq, ast.IsNot)):
        return ""
    right = node.comparators[0]
    constant = isinstance(right, ast.Constant) or (isinstance(right, ast.Attribute) and right.attr.isupper())
    return canonical(it, node.left) if constant else ""
