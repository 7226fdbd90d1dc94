"""Calls that cannot be followed: what they receive shows what they might do."""

from __future__ import annotations

import ast
import re
import sys

from gradlab.audit.knowledge.call_site import CallSite
from gradlab.audit.knowledge.known_names import AVERAGES, COMPUTES_LOSS, HARMLESS, LOGGERS, MAY_ACT, SHOWS
from gradlab.audit.knowledge.schedule_lengths import measure
from gradlab.audit.source.syntax import dotted
from gradlab.audit.trace.engine import Engine
from gradlab.audit.trace.iterables import members
from gradlab.audit.trace.provenance import LONGEST, first_cut, is_traced
from gradlab.audit.trace.values import CALLABLE, UNSET, Value

ACTING = {
    *("optimizer", "scaler", "loss_scaler", "model", "ddp", "params", "accelerator", "fabric", "groups", "gradients")
}
"""Kinds that a call must receive to be able to do something to gradients."""
SHARED = ("model", "ddp", "params", "optimizer")
"""Kinds of what such a call may keep, and use or change elsewhere."""
HOLDING = ACTING - {"model", "ddp", "params", "gradients"}
DATA = {"model", "ddp", "tensor"}
"""Kinds of what a call receives that only computes something."""
CONFIGURATIONS = {"instance", "arguments", "accelerator", "fabric", "index", "dict"}
AWAY_FROM_ZERO = {"clamp", "clamp_min", "clip", "max", "maximum", "clamp_", "clamp_min_"}
SAME_NUMBER = AWAY_FROM_ZERO | {"float", "long", "int", "double", "item", "to", "detach", "clone", "type_as", "cuda"}
"""Methods that keep the number of items in a batch, and those of them after which it is not 0."""
MOVING = {"to", "cuda", "cpu", "float", "double", "half", "long", "type", "type_as", "pin_memory", "contiguous"}
"""Methods of a batch whose results are the same batch."""
PLAIN_NUMBERS = {"size", "numel", "nelement", "dim", "item", "tolist"}
"""Methods whose results are numbers of Python's, whatever they are called on."""
INERT = {*sys.stdlib_module_names, "numpy", "pandas", "scipy", "sklearn", "matplotlib", "yaml", "wandb", "omegaconf"}
"""Packages whose functions do nothing to gradients."""
FREEZES = re.compile(r"requires_?grad|freeze|trainable|toggle", re.I)
"""Names of functions that say whether weights need a gradient."""
WHOLE = re.compile(r"(^|[._])(args?|cfg|conf(ig)?|opts?|params|h?params|settings|self|options)$", re.I)
"""Names of configurations."""
CLASS = re.compile(r"[A-Z]\w*[a-z]|[A-Z]{2,}\d*$")
"""Names of classes."""
SIZE = re.compile(r"^$|size|batch|num|^n$", re.I)
"""Names of how many are drawn from what is stored; without a name it is a number in the text."""
STORE = re.compile(r"buffer|memory|replay|data|experience", re.I)
"""Names of what stores samples."""
PUTS = r"(push|add|append|extend|store|insert|put|remember)\w*"
"""Methods that give samples to what stores them."""
TRAINS = r"(\w+\.)*(named_parameters|parameters|train|to|cuda)"
"""Methods of networks that are trained, and of their parts."""
LENGTHS = re.compile(r"(?<!t)arg|cfg|conf|opt|param|setting|self|accum|step|micro|update|num|count|^n$", re.I)
"""Names of what may contain the length of a window."""


def opaque_call(call: CallSite, owner: Value | None) -> Value:
    """The unknown result of a call, after an event that names what it might do."""
    engine, name = call.engine, call.tail
    received = [v for a in call.values for v in members(a)]
    for value in received:
        if value.kind in SHARED and not inert(call, received) and not HARMLESS.match(name):
            (value if value.kind == "optimizer" else value.root()).update(thawed=True, shared=True)  # perhaps
        if value.kind not in ("number", "bool", "none") and FREEZES.search(name):
            call.emit("freeze", value)
    receives = kinds_received(engine, owner, received)
    used = call.node is not engine.statement_call
    if used and COMPUTES_LOSS.match(name):
        pass_networks(call)
    averages = owner is not None and receives <= {"model", "ddp", "params"} and AVERAGES.search(owner.name)
    if receives and not averages and not inert(call, received) and acts(name, receives, used):
        call.emit("opaque", owner, name=name, receives=frozenset(receives), used=used)
    if len(call.args) == 1 and call.args[0].kind in ("function", "method"):
        return call.args[0]  # compiled, or wrapped otherwise
    if owner is not None and owner.counted is not None and name in SAME_NUMBER:
        return count_of(owner, name)
    configured = owner is not None and name == "get" and bool(call.args) and call.args[0].kind == "number"
    data = owner is not None and (owner.kind == "bool" or (owner.kind == "unknown" and owner.traced))
    numbers = bool(call.values) and all(v.kind in ("number", "unknown") and SIZE.search(v.name) for v in call.values)
    drawn = owner is not None and owner.kind == "unknown" and name == "sample" and numbers and stores(call, owner)
    traced = drawn or (data and (name in MOVING or all(map(is_traced, call.values))))
    lost = first_cut(owner) if owner is not None and traced else None
    traced = traced or (owner is not None and name in PLAIN_NUMBERS)
    lengths = lengths_given(call) if re.search("sched", name, re.I) else []
    alone = owner is None and not receives and CLASS.match(name) is not None and all(v.within is None for v in received)
    result = Value(
        made=True,
        opaque=True,
        traced=traced,
        cut=lost.cut if lost is not None else None,
        cut_path=lost.cut_path if lost is not None else "",
        blind=blind(owner, received),
        inside=tuple(engine.regions),
        chain=tuple(dict.fromkeys(event for v in received if v.kind == "tensor" for event in v.chain))[-LONGEST:],
        acting=bool(receives),
        trained=tuple(v.root() for v in received if v.kind in ("params", "model", "ddp")),  # should it be an optimizer
        never_none=owner is None and name in ("float", "int", "str"),
        counted=owner if name in ("sum", "numel") and not call.values else None,
        summed=name == "sum",
        call=call.node if lengths else UNSET,
        made_by=name if owner is None else "",
        path=engine.module.path,
        birth=owner.birth if owner is not None and configured else -1,
        alone=alone,
        args=tuple(received) if alone else (),
    )
    measure(engine, result, lengths)
    return result


def stores(call: CallSite, owner: Value) -> bool:
    """Whether an object keeps the samples that are drawn from it: those of a network may have its graph."""
    receiver = dotted(call.node.func.value) if isinstance(call.node.func, ast.Attribute) else ""
    text, name = call.engine.module.source.text, re.escape(receiver.split(".")[-1])
    given = STORE.search(f"{receiver} {owner.maker}") or re.search(rf"\b{name}\.{PUTS}\(", text)
    return bool(name and given) and not re.search(rf"\b{name}\.{TRAINS}\(", text)


def pass_networks(call: CallSite) -> None:
    """What computes a loss with a network calls it."""
    for value in (v for a in call.values for v in members(a)):
        if value.kind == "ddp" or value.raw is not None:
            call.emit("passed", value)


def lengths_given(call: CallSite) -> list[ast.expr]:
    """Numbers that what makes a schedule receives, unless it may find the length of a window in a configuration."""
    found = [n for n, v in zip(call.expressions, call.values) if v.kind not in ("optimizer", "list")]
    return [] if any(WHOLE.search(text) or "accum" in text for text in map(ast.unparse, found)) else found


def count_of(number: Value, name: str) -> Value:
    """The number of items again, as another type or kept away from 0."""
    away = number.positive or name in AWAY_FROM_ZERO
    return Value(made=True, counted=number.counted, summed=number.summed, positive=away, birth=number.birth)


def kinds_received(engine: Engine, owner: Value | None, received: list[Value]) -> set[str]:
    """Kinds of what a call receives and might act on; "self": what its object holds; "tensor": a loss among them."""
    receives = {v.kind for v in received} & ACTING
    if owner is not None and owner.framework and (owner.kind != "model" or owner.lineage):
        owner.received_training = owner.received_training or bool(receives & HOLDING)
        shows = engine.without_gradient and owner is not engine.selves[0]  # an evaluation, which updates nothing
        if not shows and may_hold_optimizer(engine, owner) and not (receives <= DATA and LOGGERS.search(owner.name)):
            receives.add("self")
    elif owner is not None and owner.kind in ACTING:
        receives.add(owner.kind)
    if any(v.kind == "instance" and any(a.kind in ACTING for a in v.attributes.values()) for v in received):
        receives.add("self")
    if any(v.kind == "tensor" for v in received) and receives:
        receives.add("tensor")
    return receives


def may_hold_optimizer(engine: Engine, owner: Value) -> bool:
    """Whether an object of a class that is not wholly seen may have an optimizer: it received one, or is the root."""
    if owner is engine.selves[0] or owner.received_training or not owner.lineage or owner.given or owner.annotated:
        return True
    return any(value.kind in HOLDING for value in owner.attributes.values())


def inert(call: CallSite, received: list[Value]) -> bool:
    """Whether a function is of a package that knows no gradients, and receives nothing that it could call."""
    package, dot, _ = call.name.partition(".")
    return bool(dot) and package in INERT and not any(v.kind in CALLABLE for v in received)


def acts(name: str, receives: set[str], used: bool) -> bool:
    """Whether a call may do something to gradients; by its name where it computes something of a model and data."""
    if HARMLESS.match(name) or (COMPUTES_LOSS.match(name) and not receives & HOLDING):
        return False
    return not receives <= DATA or not (used or SHOWS.search(name)) or (used and bool(MAY_ACT.search(name)))


def blind(owner: Value | None, received: list[Value]) -> bool:
    """Whether a call does not know the length of a window, so that it cannot divide by it."""
    if owner is not None and owner.kind not in ("model", "ddp", "criterion"):
        return False
    return not any(v.kind in CONFIGURATIONS or LENGTHS.search(v.name) or v.framework for v in received)
