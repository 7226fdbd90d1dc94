"""Schedules that Lightning steps: once an epoch, unless configure_optimizers() says that it is once an update."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import NamedTuple

from gradlab.audit.knowledge.schedule_lengths import ARITHMETIC
from gradlab.audit.rules.registry import text_rule
from gradlab.audit.rules.schedule_length import FALLING
from gradlab.audit.source.project import Function, Module, methods_of
from gradlab.audit.source.syntax import called_name, dotted, walk

LENGTHS = {"total_steps", "steps_per_epoch", "num_training_steps", "T_max", "total_iters"}
"""Keywords of a schedule's length."""
UPDATES = re.compile(r"estimated_stepping_batches|(?<!_per_)\w*steps\b|len\([\w.()]*load[\w.()]*\)")
"""What a number of updates is computed from."""
WHOLE = re.compile(r"\btrainer\.(estimated_stepping_batches|max_steps)$")
"""Lightning's own number of all updates."""
BATCHES = re.compile(r"(^|[._])(iter(ation)?s|steps|batches)_per_epoch$|^len\([\w.()]*load[\w.()]*\)$")
"""A number of batches of an epoch."""
PER_EPOCH = re.compile(r"epoch|sample|data|\blen\(")
"""What a number is divided by that becomes a number of epochs."""
HANDLED = re.compile(r"automatic_optimization = False|def lr_scheduler_step|lr_schedulers\(\)")
"""What says that a module steps its schedules by itself."""


class Configured(NamedTuple):
    """A schedule as configure_optimizers() returns it, the call that makes it, and where its interval is given."""

    node: ast.expr
    call: ast.Call
    interval: ast.expr | None


class Scope(NamedTuple):
    """Where the names of an expression are bound: in a method of a Lightning module; left: how many are looked up."""

    function: Function
    owner: ast.ClassDef
    left: int = 6


@text_rule("GL409")
def updates_in_epochs(module: Module) -> Iterator[ast.AST]:
    for one, scope in configured(module):
        if one.interval is None or ast.unparse(one.interval) == "'epoch'":
            found = (
                text for text in lengths(one.call, scope.function) if not re.search(r"/ [\w.(]*(epoch|len\()", text)
            )
            if any(UPDATES.search(text) for text in found) or receives_updates(one.call, scope):
                yield one.node


def configured(module: Module) -> Iterator[tuple[Configured, Scope]]:
    """The schedules of a file's Lightning modules, each with the method that makes it."""
    if "configure_optimizers" not in module.source.text or "ightning" not in module.source.text:
        return
    for owner in module.source.nodes.of(ast.ClassDef):
        function = methods_of(owner).get("configure_optimizers")
        if function is not None and not HANDLED.search(ast.unparse(owner)):
            for one in returned(function):
                yield one, Scope(function, owner)


def returned(function: Function) -> Iterator[Configured]:
    """`{"scheduler": s, "interval": "step"}`, `[optimizer], [s]` and `{"optimizer": o, "lr_scheduler": s}`."""
    late = any(isinstance(p, ast.Subscript) and ast.unparse(p.slice) == "'interval'" for p in walk(function))
    plain: list[ast.expr] = []
    for part in walk(function):
        if isinstance(part, ast.Dict) and all(isinstance(key, ast.Constant) for key in part.keys):
            items = {key.value: value for key, value in zip(part.keys, part.values) if isinstance(key, ast.Constant)}
            if (call := made_by(items.get("scheduler"), function)) is not None:
                if not late:
                    yield Configured(items["scheduler"], call, items.get("interval"))
            elif "lr_scheduler" in items:
                plain.append(items["lr_scheduler"])
        elif isinstance(part, ast.Return) and isinstance(part.value, ast.Tuple) and len(part.value.elts) == 2:
            plain += getattr(part.value.elts[1], "elts", [])
    for node in plain:
        if (call := made_by(node, function)) is not None:
            yield Configured(node, call, None)


def made_by(node: ast.expr | None, function: Function) -> ast.Call | None:
    """The call that makes a schedule of an optimizer: itself, or what its name is bound to once."""
    found = bound(node, function) if isinstance(node, ast.Name) else node
    return found if isinstance(found, ast.Call) and (found.args or found.keywords) else None


def bound(node: ast.expr, function: Function, attribute: bool = False) -> ast.expr:
    """What a name is bound to, if that is once; anything else is itself."""
    made = [n.value for n in walk(function) if isinstance(n, ast.Assign) and dotted(n.targets[0]) == dotted(node)]
    return made[0] if len(made) == 1 and isinstance(node, ast.Attribute if attribute else ast.Name) else node


def lengths(call: ast.Call, function: Function) -> list[str]:
    """The expressions of a schedule's length, their names replaced by what they are bound to."""
    name = called_name(call)
    given = [k.value for k in call.keywords if k.arg in LENGTHS]
    if not given and FALLING.search(name):
        given = call.args[2:3]
    if not given and name == "CosineAnnealingLR":
        given = call.args[1:2]
    return [ast.unparse(bound(node, function)) for node in given]


def receives_updates(call: ast.Call, scope: Scope) -> bool:
    """Whether what makes a schedule, or the rates of one, is given the number of all updates, and no epochs beside."""
    given = [*call.args, *(k.value for k in call.keywords)]
    found = [node for node in given if counts_updates(node, scope) or asks_for_updates(node, scope)]
    return bool(found) and not any(re.search("epoch", ast.unparse(node)) for node in given if node not in found)


def asks_for_updates(node: ast.expr, scope: Scope) -> bool:
    """Whether a function of rates, made here or by a call, divides what it is given by a number of updates."""
    made, there = value_of(node, scope)
    if isinstance(made, ast.Call):
        return receives_updates(made, there)
    local = (n for n in walk(there.function) if isinstance(n, ast.FunctionDef) and n.name == dotted(node))
    rates = made if isinstance(made, ast.Lambda) else next(local, None)
    if rates is None or len(rates.args.args) != 1:
        return False
    of = rates.args.args[0].arg

    def has(part: ast.AST) -> bool:
        return any(isinstance(n, ast.Name) and n.id == of for n in walk(part))

    parts = [n for n in walk(rates) if isinstance(n, ast.BinOp)]
    sides = [(n.op, n.right if has(n.left) else n.left) for n in parts if has(n)]
    if any(isinstance(op, ast.Mult) and not isinstance(side, ast.Constant) for op, side in sides):
        return False  # epochs times the updates of each
    return any(isinstance(op, ast.Div) and counts_updates(side, there) for op, side in sides)


def counts_updates(node: ast.expr, scope: Scope) -> bool:
    """Whether a number is that of all updates, or a part of it: Lightning's, or batches of an epoch times epochs."""
    node, scope = value_of(node, scope)
    if isinstance(node, ast.BinOp):
        sides = (node.left, node.right)
        if isinstance(node.op, (ast.Div, ast.FloorDiv)):
            below = written(node.right, scope)
            if PER_EPOCH.search(below) or counts_batches(node.right, scope):
                return False
            return ("batch" in below and "epoch" in written(node.left, scope)) or counts_updates(node.left, scope)
        if isinstance(node.op, ast.Mult):
            for one, other in (sides, sides[::-1]):
                if counts_batches(one, scope) and re.search("epoch", written(other, scope)):
                    return True
        return any(counts_updates(side, scope) for side in sides)
    if isinstance(node, ast.Call) and called_name(node) in ARITHMETIC:
        return any(counts_updates(one, scope) for one in node.args)
    if isinstance(node, (ast.List, ast.Tuple)):
        return any(counts_updates(one, scope) for one in node.elts)
    return WHOLE.search(ast.unparse(node)) is not None


def counts_batches(node: ast.expr, scope: Scope) -> bool:
    """Whether a number is that of an epoch's batches."""
    node, scope = value_of(node, scope)
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Div, ast.FloorDiv)):
        return "batch" in written(node.right, scope) or counts_batches(node.left, scope)
    if isinstance(node, ast.Call) and called_name(node) in ARITHMETIC - {"len"}:
        return any(counts_batches(one, scope) for one in node.args)
    return BATCHES.search(ast.unparse(node)) is not None


def written(node: ast.expr, scope: Scope) -> str:
    return f"{ast.unparse(node)} {ast.unparse(value_of(node, scope)[0])}"


def value_of(node: ast.expr, scope: Scope) -> tuple[ast.expr, Scope]:
    """What a name, or an attribute of self, is bound to once, and where; anything else is itself."""
    while scope.left:
        found, there = bound(node, scope.function), scope.function
        if dotted(node).startswith("self."):
            methods = methods_of(scope.owner).values()
            made = [(b, m) for m in methods if (b := bound(node, m, attribute=True)) is not node]
            found, there = made[0] if len(made) == 1 else (node, there)
        if found is node:
            break
        node, scope = found, Scope(there, scope.owner, scope.left - 1)
    return node, scope
