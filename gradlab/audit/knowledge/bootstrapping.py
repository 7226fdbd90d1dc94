"""Targets that a network has a part in: they are to be followed, and not to be moved."""

from __future__ import annotations

import ast
import re

from gradlab.audit.trace.engine import Engine
from gradlab.audit.trace.provenance import is_traced, sources
from gradlab.audit.trace.tensors import made_of
from gradlab.audit.trace.values import NO_ROOTS, Value, births

REGRESSION = re.compile(
    r"torch\.nn\.(functional\.)?(MSELoss|L1Loss|SmoothL1Loss|HuberLoss|mse_loss|l1_loss|smooth_l1_loss|huber_loss)"
)
"""Loss functions of PyTorch's that compare a number with what it is to be."""
DIVERGENCE = re.compile(r"torch\.nn\.(functional\.)?(KLDivLoss|kl_div)")
"""Those that compare a distribution with what it is to be."""
DISCOUNT = re.compile(r"gamma|discount|done|terminal", re.I)
"""Names of what a later prediction is multiplied with; elsewhere an equation may be solved."""


def with_data(value: Value) -> bool:
    """Whether a tensor with a graph and data are added up or subtracted, after the first is multiplied."""
    sides = value.made_of
    own = [one for one in sides if one.kind == "tensor" and sources(one)]
    if len(sides) != 2 or len(own) != 1:
        return False
    data = sides[0] if own[0] is sides[1] else sides[1]
    if any(factor not in (*own[0].factors, *data.factors) for factor in value.factors):
        return False  # a product, or a quotient
    without = data.kind in ("unknown", "detached") or (data.kind == "tensor" and is_traced(data) and not sources(data))
    return without and any(f.sign == "*" for f in own[0].factors)


def unmoved(value: Value) -> Value:
    """The tensor that another is as a whole: `x.to(device)`, `x.float()`."""
    while value.kind == "tensor" and len(value.made_of) == 1:
        value = value.made_of[0]
    return value


def marked(engine: Engine, node: ast.AST, value: Value) -> frozenset[int]:
    """Emit that a loss moves a value, and return the root of the loss that says so."""
    if engine.without_gradient or value.choice:
        return NO_ROOTS
    token = next(births)
    engine.tokens.add(token)
    engine.emit("unstable", node, value, what="target", token=token)
    return frozenset([token])


def target(engine: Engine, node: ast.AST, maker: str, args: list[Value]) -> frozenset[int]:
    """A regression to data and a discounted prediction of the same network, of another input."""
    if len(args) < 2:
        return NO_ROOTS
    if DIVERGENCE.fullmatch(maker) and of_itself(*args[:2]):
        return marked(engine, node, args[1])
    return between(engine, node, args[0], args[1]) if REGRESSION.fullmatch(maker) else NO_ROOTS


def of_itself(prediction: Value, aim: Value) -> bool:
    """Whether a target is what the network says that is to follow it, normalised anew: a sharpened distribution."""
    sharpened = any(factor.value.kind == "tensor" and factor.sign == "/" for factor in aim.factors)
    return aim.kind == "tensor" and sharpened and bool(networks([prediction]) & networks([aim]))


def error(engine: Engine, node: ast.AST, difference: Value) -> frozenset[int]:
    """The same, where the difference of both is squared by hand."""
    sides = unmoved(difference).made_of
    discounts = [ast.unparse(f.node) for side in sides for part in made_of(side) for f in part.factors]
    return between(engine, node, *sides) if len(sides) == 2 and DISCOUNT.search(" ".join(discounts)) else NO_ROOTS


def between(engine: Engine, node: ast.AST, one: Value, two: Value) -> frozenset[int]:
    for prediction, aim in ((one, unmoved(two)), (two, unmoved(one))):
        beside = [prediction.appended] if prediction.kind == "unknown" and prediction.appended is not None else []
        same = networks([prediction, *beside]) & networks([aim])
        other = {id(e) for e in sources(aim)} - {id(e) for e in sources(prediction)}
        if same and other and with_data(aim):
            return marked(engine, node, aim)
    return NO_ROOTS


def networks(values: list[Value]) -> set[Value]:
    """The networks that values come from; what is put into one list comes from the same as its other items."""
    return {e.value.root() for one in values for e in sources(one) if e.value is not None}
