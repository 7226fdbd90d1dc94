"""From the test of an `if` to a formula: flags, periods, checks for None and for finite numbers."""

from __future__ import annotations

import ast
import re
from dataclasses import replace

from gradlab.audit.interpreter.canonical_text import canonical, parts, youngest
from gradlab.audit.interpreter.loop_bounds import changes_once, is_last, is_past_the_last, since_first
from gradlab.audit.interpreter.window_periods import OfIteration, arithmetic, counter, is_entry
from gradlab.audit.knowledge.known_names import kind_made
from gradlab.audit.source.syntax import dotted, kinds, text
from gradlab.audit.trace.conditions import FALSE, SEVERAL, TRUE, Atom, Formula, joined, negation
from gradlab.audit.trace.engine import Engine
from gradlab.audit.trace.truth import FINITE, OBJECTS, present, truthy
from gradlab.audit.trace.values import births

LAST = re.compile(r"\blen\(|last|total|num_batches|n_batches|\bend\b")
"""What the index of the last batch is compared with."""

CHECKS = re.compile(r"\b(isfinite|isnan|isinf)\(")
"""Functions that look for NaN or Inf."""
COUNTING = re.compile(r"accum(?!ulator\b)|should_?(step|update|sync)|is_(step|update|sync|boundary)", re.I)
"""Calls that say of each iteration anew whether it ends a window."""


def formula(engine: Engine, node: ast.expr) -> Formula:
    """The calls in the test were followed when its value was asked for, and are not followed again."""
    frozen, engine.frozen = engine.frozen, True
    try:
        return unfrozen(engine, node)
    finally:
        engine.frozen = frozen


def unfrozen(engine: Engine, node: ast.expr) -> Formula:
    if isinstance(node, ast.BoolOp):
        word = "and" if isinstance(node.op, ast.And) else "or"
        return joined(word, [formula(engine, value) for value in node.values])
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return negation(formula(engine, node.operand))
    if isinstance(node, ast.Constant):
        return TRUE if node.value else FALSE
    if isinstance(node, ast.Compare):
        return compare(engine, node)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
        return comparison(engine, node)
    if isinstance(node, (ast.Name, ast.Attribute)) or is_entry(node):
        return named(engine, node)
    if isinstance(node, ast.Call) and len(node.args) == 2 and (known := of_kind(engine, node)) is not None:
        return known
    value = engine.value(node)
    if value.kind == "bool":
        return value.formula
    finite = FINITE.search(text(node)) or value.checks_finite
    kind = "finite" if finite else "flag"
    counts = isinstance(node, ast.Call) and COUNTING.search(text(node))
    birth = next(births) if counts else youngest(engine, node)
    return ("atom", Atom(canonical(engine, node), birth, kind, text=text(node)))


def named(engine: Engine, node: ast.expr) -> Formula:
    """That what a name stands for is true; of the answer of a check for finite numbers, as the check itself."""
    value = engine.value(node)
    found = truthy(value, text(node))
    made = engine.origins.get(value.number)
    if made is None or found[0] != "atom" or found[1].kind != "flag" or not CHECKS.search(text(made[0])):
        return found
    return ("atom", replace(found[1], kind="finite", text=text(made[0])))


def compare(engine: Engine, node: ast.Compare) -> Formula:
    """Chains, comparisons with None and with True or False; then any other comparison."""
    if len(node.ops) > 1:
        ends = [node.left, *node.comparators]
        pairs = [ast.Compare(one, [op], [two]) for one, op, two in zip(ends, node.ops, ends[1:])]
        return joined("and", [formula(engine, pair) for pair in pairs])
    left, right, op = node.left, node.comparators[0], node.ops[0]
    if isinstance(right, ast.Constant) and engine.value(left).of_processes:
        if (type(op), right.value) in ((ast.Gt, 1), (ast.NotEq, 1), (ast.GtE, 2)):
            return SEVERAL
        if (type(op), right.value) in ((ast.LtE, 1), (ast.Eq, 1), (ast.Lt, 2)):
            return negation(SEVERAL)
    if isinstance(right, ast.Constant) and isinstance(op, (ast.Is, ast.IsNot, ast.Eq, ast.NotEq)):
        other = isinstance(op, (ast.IsNot, ast.NotEq))
        if right.value is None:
            there = present(engine.value(left))
            return there if other else negation(there)
        if isinstance(right.value, bool):
            there = formula(engine, left)
            return there if right.value != other else negation(there)
        if isinstance(right.value, str) and (known := engine.word(left)) is not None:
            return TRUE if (known == right.value) != other else FALSE
    return comparison(engine, node)


def of_kind(engine: Engine, node: ast.Call) -> Formula | None:
    """`isinstance(x, C)` and `hasattr(x, "module")`; None where the answer is not known."""
    asked, value, kind = dotted(node.func), engine.value(node.args[0]), engine.value(node.args[1])
    if asked not in ("isinstance", "hasattr"):
        return None
    wraps = (
        kind.kind == "external" and kind_made(kind.name) == "ddp" if asked == "isinstance" else kind.value == "module"
    )
    if wraps and (value.kind == "ddp" or (asked == "isinstance" and value.lineage)):
        return joined("or", [when for when, v in value.choice or ((TRUE, value),) if v.kind == "ddp"])
    if kind.kind != "class" or value.choice:
        return None
    if value.lineage:
        return TRUE if kind.node in value.lineage else None if value.framework else FALSE
    return FALSE if value.kind in OBJECTS and value.call is not None else None


def comparison(engine: Engine, node: ast.Compare | ast.BinOp) -> Formula:
    """A comparison, or `i % n` as a truth value."""
    if isinstance(node, ast.Compare) and is_past_the_last(engine, node):
        return FALSE if isinstance(node.ops[0], ast.Eq) else TRUE
    written = text(node)
    periods: set[str] = set()
    at = arithmetic(engine, node, periods)
    used = parts(engine, node)
    key, birth = canonical(engine, node), max((value.birth for value in used), default=0)
    modulo = ast.Mod in kinds(node)
    by_length = LAST.search(written) or any(value.is_length for value in used)
    by_length = (
        by_length and not since_then(engine, node) and not any(value.kind == "index" and value.stride for value in used)
    )  # parts of a batch
    if FINITE.search(written):
        return ("atom", Atom(key, birth, "finite", text=written))
    ends = is_last(engine, node)
    if not modulo and not ends and not by_length and (count := counter(engine, node)) is not None:
        first = None if periods else since_first(at, used, count[1], node)
        once = changes_once(engine, node)
        atom = ("atom", Atom(count[0], birth, at=first, subject=subject(engine, node), once=once))
        return negation(atom) if count[1] else atom
    if at is not None and modulo and len(periods) <= 1:
        return periodic(node, key, birth, next(iter(periods), ""), at)
    if isinstance(node, ast.Compare) and not modulo and by_length and any(value.kind == "index" for value in used):
        atom = ("atom", Atom(key.replace("!=", "==").replace("<", ">="), birth, "last"))
        return negation(atom) if isinstance(node.ops[0], (ast.NotEq, ast.Lt)) else atom
    if isinstance(node, ast.Compare) and re.search(r"norm|loss", written) and not re.search(r"['\"]", written):
        return ("atom", Atom(key, birth, "finite"))
    if isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.NotEq, ast.IsNot)):
        return ("not", ("atom", Atom(key.replace("!=", "=="), birth, subject=subject(engine, node), ends=ends)))
    if ends and isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Lt):
        return ("not", ("atom", Atom(key.replace("<", "=="), birth, ends=ends)))
    first = None if periods else since_first(at, used, False, node)
    once = changes_once(engine, node)
    return ("atom", Atom(key, birth, at=first, subject=subject(engine, node), ends=ends, once=once))


def since_then(engine: Engine, node: ast.Compare | ast.BinOp) -> bool:
    """`i - last_step >= n`: how many iterations ago something was."""
    left = node.left
    return isinstance(left, ast.BinOp) and isinstance(left.op, ast.Sub) and engine.value(left.left).kind == "index"


def periodic(node: ast.expr, key: str, birth: int, period: str, at: OfIteration) -> Formula:
    """`(i + 1) % n == 0`, its negation, or `i % n`."""
    if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.NotEq):
        return ("not", ("atom", Atom(key.replace("!=", "=="), birth, "period", period, lambda k: not at(k))))
    return ("atom", Atom(key, birth, "period", period, lambda k: bool(at(k))))


def subject(engine: Engine, node: ast.expr) -> str:
    """The left side of a comparison for equality with a constant or a member of an enumeration, SOME.NAME."""
    if not isinstance(node, ast.Compare) or not isinstance(node.ops[0], (ast.Eq, ast.Is, ast.NotEq, ast.IsNot)):
        return ""
    right = node.comparators[0]
    constant = isinstance(right, ast.Constant) or (isinstance(right, ast.Attribute) and right.attr.isupper())
    return canonical(engine, node.left) if constant else ""
