"""Schedules that Lightning steps: once an epoch, unless configure_optimizers() says that it is once an update."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import NamedTuple

from gradlab.audit.knowledge.schedule_lengths import EPOCHS
from gradlab.audit.rules.registry import text_rule
from gradlab.audit.rules.schedule_length import ENDING, FALLING
from gradlab.audit.source.project import Function, Module, methods_of
from gradlab.audit.source.syntax import called_name, dotted, walk

LENGTHS = {"total_steps", "steps_per_epoch", "num_training_steps", "T_max", "total_iters"}
"""Keywords of a schedule's length."""
UPDATES = re.compile(r"estimated_stepping_batches|(?<!_per_)\w*steps\b|len\([\w.()]*load[\w.()]*\)")
"""What a number of updates is computed from."""
WHOLE = re.compile(r"(int\()?self\.trainer\.(estimated_stepping_batches|max_steps)\)?")
HANDLED = re.compile(r"automatic_optimization = False|def lr_scheduler_step|lr_schedulers\(\)")
"""What says that a module steps its schedules by itself."""


class Configured(NamedTuple):
    """A schedule as configure_optimizers() returns it, the call that makes it, and where its interval is given."""

    node: ast.expr
    call: ast.Call
    interval: ast.expr | None


@text_rule("GL409")
def updates_in_epochs(module: Module) -> Iterator[ast.AST]:
    for one, function in configured(module):
        each_epoch = one.interval is None or ast.unparse(one.interval) == "'epoch'"
        if each_epoch and any(UPDATES.search(text) for text in lengths(one.call, function)):
            yield one.node


@text_rule("GL405")
def epochs_in_updates(module: Module) -> Iterator[ast.AST]:
    for one, function in configured(module):
        if one.interval is None or ast.unparse(one.interval) != "'step'":
            continue
        texts = lengths(one.call, function)
        in_epochs = bool(texts) and all(EPOCHS.search(text) and not counts_otherwise(text) for text in texts)
        if in_epochs and (ENDING.search(called_name(one.call)) or FALLING.search(called_name(one.call))):
            yield one.interval


def counts_otherwise(text: str) -> bool:
    """Whether a length may be another than a number of epochs."""
    return UPDATES.search(text) is not None or re.search(r"[*(]|step|batch|iter", text) is not None


def configured(module: Module) -> Iterator[tuple[Configured, Function]]:
    """The schedules of a file's Lightning modules, each with the method that makes it."""
    if "configure_optimizers" not in module.source.text or "ightning" not in module.source.text:
        return
    for owner in module.source.nodes.of(ast.ClassDef):
        function = methods_of(owner).get("configure_optimizers")
        if function is not None and not HANDLED.search(ast.unparse(owner)):
            for one in returned(function):
                yield one, function


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


def bound(node: ast.expr, function: Function) -> ast.expr:
    """What a name is bound to, if that is once; anything else is itself."""
    made = [n.value for n in walk(function) if isinstance(n, ast.Assign) and dotted(n.targets[0]) == dotted(node)]
    return made[0] if len(made) == 1 and isinstance(node, ast.Name) else node


def lengths(call: ast.Call, function: Function) -> list[str]:
    """The expressions of a schedule's length, their names replaced by what they are bound to."""
    name = called_name(call)
    given = [k.value for k in call.keywords if k.arg in LENGTHS]
    if not given and FALLING.search(name):
        given = call.args[2:3]
    if not given and name == "CosineAnnealingLR":
        given = call.args[1:2]
    if not given:  # of a class that is not seen: Lightning's own number of updates is its length
        every = (*call.args, *(k.value for k in call.keywords))
        given = [node for node in every if WHOLE.fullmatch(ast.unparse(bound(node, function)))]
    return [ast.unparse(bound(node, function)) for node in given]
