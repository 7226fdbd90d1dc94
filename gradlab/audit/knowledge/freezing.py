"""Weights that need no gradient, and models whose weights may need one again."""

from __future__ import annotations

import ast

from gradlab.audit.trace.engine import Engine
from gradlab.audit.trace.values import Value, births


def freeze(engine: Engine, node: ast.AST, weights: Value, to: Value | None) -> None:
    """Set requires_grad of parameters, of one of them or of something unknown; None: to True."""
    off = to is not None and to.value is False
    if to is not None and to.value is not True:
        engine.emit("freeze", node, weights)
    known = weights.kind in ("params", "param")
    if not off:
        theirs = [m for one in weights.items or [weights] for m in wholes(one.root())]
        some = known and any(m.frozen for m in theirs)  # else they may be a part of any that is frozen
        for model in theirs if some else [*theirs, *engine.frozen_models]:
            model.thawed = True
        engine.thawing |= not known
        return
    for one in weights.items or [weights] if known and not weights.some and not engine.branches else ():
        model = one.root()
        if model.kind in ("model", "ddp") and model.within is None:
            model.update(frozen=next(births), thawed=model.thawed or engine.thawing)
            engine.frozen_models.append(model)


def renew(engine: Engine, owner: Value, value: Value) -> None:
    """A part of a frozen model is replaced, perhaps by one that is not frozen; of an unknown object any model's."""
    if owner.kind in ("model", "ddp"):
        for whole in wholes(owner.root()):
            whole.thawed |= bool(whole.frozen)
    elif owner.kind == "unknown" and (value.kind in ("model", "ddp", "instance") or value.made):
        for model in engine.frozen_models:
            model.thawed = True


def wholes(model: Value) -> list[Value]:
    """A model, and those that it is a part of."""
    found = [model]
    while (whole := found[-1].within) is not None and len(found) < 10:
        found.append(whole.root())
    return found
