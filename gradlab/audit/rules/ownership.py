"""Whose gradients a step, a zero or a clip is about."""

from __future__ import annotations

from gradlab.audit.trace.conditions import atoms
from gradlab.audit.trace.event_tree import If, events, walk
from gradlab.audit.trace.replay import Occurrence
from gradlab.audit.trace.scenarios import Scenario
from gradlab.audit.trace.training_loop import TrainingLoop, anonymous, same
from gradlab.audit.trace.values import Value

WHOLE = ("model", "ddp", "instance", "optimizer")


def instead_of_step(loop: TrainingLoop, zero: Occurrence) -> bool:
    """Whether gradients are zeroed where otherwise a step is taken, and no counter of a window decides which.

    An optimizer that is frozen for a time throws its gradients away.
    """
    for item in walk(loop.body):
        if isinstance(item, If) and not any(a in loop.boundary or loop.timed(a) for a in atoms(item.test)):
            for side, rest in ((item.then, item.other), (item.other, item.then)):
                within, otherwise = events(side), {e.kind for e in events(rest)}
                if zero.event in within and all(e.kind != "step" for e in within) and "step" in otherwise:
                    return True
    return False


def concerns(loop: TrainingLoop, step: Occurrence, optimizer: Value | None) -> bool | None:
    """Whether an event is about this optimizer's parameters; None where that cannot be known."""
    value = step.event.value
    if step.event.owner is not None:
        return True if step.event.owner is optimizer else None
    if optimizer is None or optimizer.kind == "tensor":
        return None
    if value is not None and apart(value, optimizer):
        return False
    if len(loop.optimizers()) <= 1:
        return True
    if value is None:
        return None
    if value.kind == "optimizer":
        return same(value, optimizer) or (None if anonymous(value) or anonymous(optimizer) else False)
    root, trained = value.root(), optimizer.trained
    if optimizer.own_weight and root.kind in ("model", "ddp"):
        return False
    if not trained or root.kind not in ("model", "ddp", "instance"):
        return None
    if any(is_part(model, root) for model in trained):
        return True
    if any(is_part(root, model) for model in trained):
        return None
    return any(
        root is m or bool(root.name and root.name == m.name and root.call is m.call and not (root.built and m.built))
        for m in trained
    )


def apart(one: Value, two: Value) -> bool:
    """Whether two optimizers are made here of different networks, neither of which is a part of the other."""
    if one.call is None or two.call is None or one.choice or two.choice or same(one, two):
        return False
    held = [(a.root(), b.root()) for a in one.trained for b in two.trained]
    both = bool(held) and not (one.some or two.some)
    return both and not any(a is b or is_part(a, b) or is_part(b, a) for a, b in held)


def partial_zero(scenario: Scenario, zero: Occurrence) -> bool:
    """Whether only gradients of some parameters are set to zero, without zero_grad()."""
    if not zero.event.by_hand:
        return False
    param = zero.event.value.of if zero.event.value is not None else None
    if param is None or param.kind != "param" or param.some or param.root().kind not in WHOLE:
        return True
    if param.root().within is not None:
        return True  # of one part of a network
    loop = scenario.loop
    varying = {a.key for a in loop.atoms if a.birth > loop.birth and "is not None" not in a.key}
    return any(key in guard for guard, _ in scenario.own_guards(zero) for key in varying)


def is_part(value: Value, whole: Value) -> bool:
    """Whether a model is inside another."""
    for _ in range(6):
        if value.within is None:
            return False
        value = value.within.root()
        if value is whole or any(value is one.root() for _, one in whole.choice):
            return True
    return False


def undecided(optimizer: Value) -> bool:
    """Whether an optimizer is one of several that have other weights, and not another method for the same ones."""
    return any({*one.trained} != {*optimizer.trained} for _, one in optimizer.choice)
