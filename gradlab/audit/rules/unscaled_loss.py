"""A loss that was not scaled, and a scaler's step."""

from __future__ import annotations

from collections.abc import Iterator

from gradlab.audit.rules.ownership import concerns
from gradlab.audit.rules.registry import Hit, scenario_rule
from gradlab.audit.rules.reporting import may_hold, uncertain
from gradlab.audit.rules.scaler import both_ways, scaler_of, since_step
from gradlab.audit.trace.provenance import sources
from gradlab.audit.trace.replay import Occurrence
from gradlab.audit.trace.scenarios import Scenario
from gradlab.audit.trace.training_loop import TrainingLoop
from gradlab.audit.trace.values import Factor, Value


@scenario_rule("GL207")
def loss_not_scaled(scenario: Scenario) -> Iterator[Hit]:
    yield from past_apex(scenario)
    if uncertain(scenario.loop, "scaler", "self", "tensor", scenario=scenario):
        return
    others = any(scaler_of(s) for s in scenario.of("backward"))
    if not others and both_ways(scenario.loop):
        return
    for step in scenario.of("step"):
        scaler = step.event.scaler
        if scaler is None or scaler.kind != "scaler" or not may_hold(scenario, scaler.enabled):
            continue
        backward = next((s for s in since_step(scenario, step) if s.kind == "backward"), None)
        if backward is None or backward.event.through is not None or backward.event.value is None:
            continue
        if others and not own_loss(scenario, step):
            yield from beside_scaled(scenario, step)
            continue
        if unscaled(scenario.loop, backward.event.value, others):
            yield Hit(backward, (step,), when=scaler.enabled)


def beside_scaled(scenario: Scenario, step: Occurrence) -> Iterator[Hit]:
    """Losses that come from a network of this optimizer, or from a forward pass, that a scaled loss comes from too.

    Their gradients are added up.
    """
    passes: list[tuple[Occurrence, Value]] = []
    for one in since_step(scenario, step):
        if one.kind == "zero" and concerns(scenario.loop, one, step.event.value) is not False:
            break
        if one.kind == "backward" and one.event.value is not None:
            passes.append((one, one.event.value))
    trained = step.event.value.trained if step.event.value is not None else ()

    def common(value: Value) -> set[object]:
        """The forward passes that a loss comes from, and the networks that the step is for."""
        roots = {event.value.root() for event in sources(value) if event.value is not None}
        return {*sources(value), *(root for root in roots if root in trained)}

    scaled = {thing for one, value in passes if scaler_of(one) for thing in common(value)}
    for one, value in passes:
        plain = one.event.through is None and not scaler_of(one) and unscaled(scenario.loop, value, True)
        if plain and scaled & common(value):
            yield Hit(one, (step,))


def past_apex(scenario: Scenario) -> Iterator[Hit]:
    """Inside `with amp.scale_loss(loss, ...) as scaled` the loss itself goes backward: the block's end unscales."""
    for backward in scenario.of("backward"):
        region, loss = backward.inside("scale_loss"), backward.event.value
        given = region.context.entered if region is not None and region.context is not None else None
        if given is not None and any(loss is one for one in given.made_of):
            yield Hit(backward)
    yield from never_scaled(scenario)


def never_scaled(scenario: Scenario) -> Iterator[Hit]:
    """`loss.backward()` alone, in a loop without `amp.scale_loss`, though Apex has prepared the optimizer."""
    loop = scenario.loop
    scaled = any(e.scaler is not None or any(r.kind == "scale_loss" for r in e.regions) for e in loop.events)
    if scaled or uncertain(loop, "tensor", "optimizer", "scaler", "self"):
        return
    for step in scenario.of("step"):
        backward = next((s for s in since_step(scenario, step) if s.kind == "backward"), None)
        prepared = step.event.value is not None and step.event.value.apex and step.event.scaler is None
        if prepared and backward is not None and backward.event.through is None:
            yield Hit(backward, (step,))


def unscaled(loop: TrainingLoop, value: Value, others: bool) -> bool:
    """Whether a loss, or a term of it, was not scaled, by a scaler or by hand; others: other losses of the loop are."""

    def by_hand(of: Value) -> list[Factor]:
        factors = [f for f in of.factors if f.sign == "*" or "scale" in f.text]
        return [f for f in factors if f.value.kind != "number" or not others]

    if value.kind != "tensor" or value.apex or any("scale" in f.text for f in by_hand(value)):
        return False
    whole = [f for f in by_hand(value) if all(f not in term.factors for term in value.parts)]
    terms = value.parts or (value,)
    plain = not whole and any(not term.opaque and not by_hand(term) for term in terms)
    elsewhere = [e.value for e in loop.events if e.kind == "backward" and e.value is not None and e.value.scaled]
    same = (one for one in elsewhere if one.roots & value.roots and one.scaled is not None)
    return plain or not elsewhere or any(one.scaled.call is not None for one in same)  # type: ignore[union-attr]


def own_loss(scenario: Scenario, step: Occurrence) -> bool:
    """Whether an optimizer has a loss of its own: every other, which is scaled, has had its own optimizer's step."""
    if any(s.event.scaler is None for s in scenario.of("step")) or any(map(scaler_of, since_step(scenario, step))):
        return False
    for other in reversed(scenario.before(step)):
        if other.kind == "step" and other.event.value is not step.event.value:
            return True
        if other.kind in ("step", "zero") and concerns(scenario.loop, other, step.event.value):
            return True
        if scaler_of(other):
            return False
    return True
