"""How long a schedule is: the expressions of its length, and those that what is named in them comes from."""

from __future__ import annotations

import ast
import re

from gradlab.audit.knowledge.call_site import CallSite
from gradlab.audit.source.syntax import called_name, dotted, walk
from gradlab.audit.trace.engine import Engine
from gradlab.audit.trace.iterables import members
from gradlab.audit.trace.values import Value

LENGTHS = (
    *("num_warmup_steps", "T_max", "total_steps", "num_training_steps", "total_iters", "steps_per_epoch", "T_0"),
    *("t_total", "max_steps", "training_steps"),
)
"""Keywords of a schedule's length, its warm-up's first."""
ARITHMETIC = {"int", "float", "round", "ceil", "floor", "max", "min", "len"}
EPOCHS = re.compile(r"(^|[._])(n|num|max|total|train|training)?_?epochs$", re.I)
"""Names of a number of epochs, which counts neither updates nor micro-batches, whatever it was computed from."""
STEPS = re.compile(r"(^|_)(total|max|num|n|training)_(\w+_)?(steps|iters|iterations|updates)$", re.I)
"""Names of the length of a schedule, in a function that computes rates."""
PER_BATCH = re.compile(r"/ \(?[\w.]*(batch_?size|bs\b|bsz)", re.I)
"""A number of samples, divided by the size of a batch."""
FAR = 20
"""How many names a schedule's length is followed through."""


def of_closure(call: CallSite) -> tuple[str, ...]:
    """The lengths in a function that a schedule asks for its rates, which was made for them by another."""
    engine, outer = call.engine, call.engine.scope
    found: list[str] = []
    for function in (value for value in call.values if value.kind in ("function", "lambda") and value.scope):
        names = {part.id: part for part in walk(function.node) if isinstance(part, ast.Name)}
        if not any("accum" in name for name in names):
            engine.scope = function.scope
            found += [traced(engine, part, set())[0] for name, part in names.items() if STEPS.search(name)]
    engine.scope = outer
    return tuple(found)


def measure(engine: Engine, schedule: Value, lengths: list[ast.expr]) -> None:
    """Remember the expressions of a schedule's length."""
    found = [traced(engine, part, set()) for part in lengths]
    schedule.lengths, schedule.named_lengths = tuple(text for text, _ in found), tuple(named for _, named in found)


def traced(engine: Engine, node: ast.expr, seen: set[int]) -> tuple[str, str]:
    """An expression's text, followed by the expressions that what is named in it comes from; the same canonically."""
    text, canonical, outer = ast.unparse(node), engine.canonical(node), engine.scope
    named = [part for part in walk(node) if isinstance(part, (ast.Name, ast.Attribute)) and dotted(part)]
    named = [part for part in named if not EPOCHS.search(dotted(part))]
    for value in (value for part in named for value in members(engine.value(part))):
        origin, scope = engine.origins.get(value.number, (None, outer))
        if origin is None and value.kind == "unknown" and EPOCHS.search(value.name) and value.name != text:
            text, canonical = f"{text} <- {value.name}", f"{canonical} <- {value.name}"
        if origin is None or value.number in seen or len(seen) == FAR:
            continue
        if isinstance(origin, ast.Call) and called_name(origin) not in ARITHMETIC:
            continue  # an object, or a number that is computed elsewhere
        seen.add(value.number)
        engine.scope = scope
        more, same = traced(engine, origin, seen)
        text, canonical = f"{text} <- {more}", f"{canonical} <- {same}"
        engine.scope = outer
    return text, canonical
