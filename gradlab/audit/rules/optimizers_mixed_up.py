"""Weights that two optimizers step on."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gradlab.audit.rules.ownership import is_part
from gradlab.audit.rules.reach import known, overlap, put_into_train
from gradlab.audit.rules.registry import Hit, scenario_rule
from gradlab.audit.trace.provenance import is_traced, sources
from gradlab.audit.trace.scenarios import Scenario
from gradlab.audit.trace.training_loop import same
from gradlab.audit.trace.values import Value


@scenario_rule("GL702")
def weights_twice(scenario: Scenario) -> Iterator[Hit]:
    steps = [s for s in scenario.of("step") if whole(s.event.value)]
    for i, first in enumerate(steps):
        for second in steps[i + 1 :]:
            one, two = first.event.value, second.event.value
            if (
                first.k != second.k
                or one is None
                or two is None
                or same(one, two)
                or not shared(whole(one), whole(two))
            ):
                continue
            at = scenario.places
            between = scenario.steps[at[id(first)] + 1 : at[id(second)]]
            one_gradient = all(s.kind not in ("backward", "zero", "opaque", "given") for s in between)
            if one_gradient or (whole(one) == whole(two) and left_out(scenario)):
                made = [o.call for o in (one, two) if o is not None and o.path == second.event.path]
                yield Hit(second, (first,), max(made, key=line, default=None))


def fresh(model: Value) -> bool:
    """Whether a network is made here and nothing freezes it, or could load its weights."""
    root = model.root()
    return known((root,)) and bool(root.lineage) and not root.shared and not root.frozen


def line(node: ast.AST) -> int:
    return getattr(node, "lineno", 0)


def whole(optimizer: Value | None) -> frozenset[Value]:
    """The models of which an optimizer holds all parameters; of one of several optimizers, those that each holds."""
    if optimizer is not None and optimizer.choice:
        return frozenset.intersection(*(whole(one) for _, one in optimizer.choice))
    if optimizer is None or optimizer.kind != "optimizer" or optimizer.some or optimizer.call is None:
        return frozenset()
    return frozenset(model for model in optimizer.trained if model.kind in ("model", "ddp"))


def shared(some: frozenset[Value], others: frozenset[Value]) -> bool:
    """Whether a model of some is one of others, or in one of them, or the other way round."""
    pairs = ((one, other) for one in some for other in others)
    return any(one is other or is_part(one, other) or is_part(other, one) for one, other in pairs)


def learning(root: Value) -> bool:
    """Whether nothing freezes a network, or something may unfreeze it."""
    return not root.frozen or root.thawed


def left_out(scenario: Scenario) -> bool:
    """Whether a loss comes from a network that is to be trained, and none of the optimizers holds.

    It is made or put into train() here, or a loss goes backward that comes from nothing else.
    """
    loop = scenario.loop
    held = [model for optimizer in loop.optimizers() for model in optimizer.trained]
    if any(optimizer.some or not optimizer.trained for optimizer in loop.optimizers()):
        return False
    modes = {model.root() for model in put_into_train(loop)}
    for loss in (s.event.value for s in scenario.of("backward") if s.event.value is not None):
        models = [event.value for event in sources(loss) if event.value is not None]
        others = [model for model in models if not any(overlap(model, one) for one in held)]
        if any(model.root() in modes or fresh(model) for model in others):
            return True
        if others and others == models and is_traced(loss) and all(learning(model.root()) for model in models):
            return True
    return False
