"""A loss that was not scaled, and a scaler's step."""

from __future__ import annotations

from collections.abc import Iterator

from gradlab.audit.rules import Hit, rule, uncertain, under
from gradlab.audit.rules.ownership import concerns
from gradlab.audit.rules.scaler import both_ways, scaled, since
from gradlab.audit.trace.conditions import TRUE
from gradlab.audit.trace.replay import Step
from gradlab.audit.trace.scenarios import Run
from gradlab.audit.trace.training_loop import Unit


@rule("GL207")
def loss_not_scaled(run: Run) -> Iterator[Hit]:
    if uncertain(run.unit, "scaler", "self", "tensor"):
        return
    others = any(scaled(s) for s in run.of("backward"))
    if not others and both_ways(run.unit):
        return
    for step in run.of("step"):
        owner = step.event.data.get("scaler")
        if owner is None or owner.kind != "scaler" or not under(run, owner.data.get("enabled", TRUE)):
            continue
        backward = next((s for s in since(run, step) if s.kind == "backward"), None)
        if backward is None or backward.event.data.get("through") is not None or backward.event.value is None:
            continue
        if others and not apart(run, step):
            continue
        value = backward.event.value
        factors = [text for _, text, by in value.data.get("factors", []) if by.kind != "number" or not others]
        if value.kind == "tensor" and not value.data.get("scaled_by") and not any("scale" in text for text in factors):
            if not (value.data.get("opaque") or factors) or not ever_scaled(run.unit):
                yield Hit(backward, (step,), when=owner.data.get("enabled", TRUE))


def apart(run: Run, step: Step) -> bool:
    """Whether an optimizer has a loss of its own: every other, which is scaled, has made its own optimizer's step."""
    if any(s.event.data.get("scaler") is None for s in run.of("step")) or any(map(scaled, since(run, step))):
        return False
    for other in reversed(run.before(step)):
        if other.kind == "step" and other.event.value is not step.event.value:
            return True
        if other.kind in ("step", "zero") and concerns(run.unit, other, step.event.value):
            return True
        if scaled(other):
            return False
    return True


def ever_scaled(unit: Unit) -> bool:
    """Whether any loss of the loop is scaled, in whatever case."""
    values = [e.value for e in unit.events if e.kind == "backward"]
    return any(value is not None and value.data.get("scaled") is not None for value in values)
