"""Whose gradients a step, a zero or a clip is about."""

from __future__ import annotations

from gradlab.audit.trace.replay import Step
from gradlab.audit.trace.training_loop import Unit, same
from gradlab.audit.trace.values import Value

WHOLE = ("model", "ddp", "instance", "optimizer")


def concerns(unit: Unit, step: Step, optimizer) -> bool | None:
    """Whether a step is about this optimizer's parameters; None where that cannot be known."""
    value = step.event.value
    if step.event.data.get("whose") == "unknown":
        return True if step.event.data.get("given") is optimizer else None
    if optimizer.kind == "tensor":
        return None
    if len(unit.optimizers()) <= 1:
        return True
    if value is None:
        return None
    if value.kind == "optimizer":
        return bool(same(value, optimizer))
    root, roots = value.root(), optimizer.data.get("roots", [])
    if not roots or root.kind not in ("model", "ddp", "instance"):
        return None
    if any(part_of(r, root) for r in roots):
        return True
    if any(part_of(root, r) for r in roots):
        return None
    return any(
        root is r or (root.name and root.name == r.name and root.data.get("call") is r.data.get("call")) for r in roots
    )


def partly(unit: Unit, zero: Step) -> bool:
    """Whether gradients of some parameters alone are set to zero, by hand."""
    if not zero.event.data.get("by_hand"):
        return False
    param = zero.event.value.data.get("of") if zero.event.value is not None else None
    if param is None or param.kind != "param" or param.data.get("some") or param.root().kind not in WHOLE:
        return True
    varying = {a.key for a in unit.atoms if a.birth > unit.birth and "is not None" not in a.key}
    return any(key in guard for guard, _ in zero.guards for key in varying)


def part_of(value: Value, whole: Value) -> bool:
    """Whether a model is inside another."""
    for _ in range(6):
        inner = value.data.get("within")
        if inner is None:
            return False
        value = inner.root()
        if value is whole:
            return True
    return False
