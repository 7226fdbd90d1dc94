"""Clipping and zeroing at the wrong place between backward and step."""

from __future__ import annotations

from collections.abc import Iterator

from gradlab.audit.rules.ownership import concerns, instead_of_step, partial_zero
from gradlab.audit.rules.reach import overlap
from gradlab.audit.rules.registry import Hit, scenario_rule
from gradlab.audit.rules.reporting import uncertain
from gradlab.audit.rules.steps_without_gradient import before_backward
from gradlab.audit.trace.iterables import every
from gradlab.audit.trace.replay import Occurrence
from gradlab.audit.trace.scenarios import Scenario
from gradlab.audit.trace.training_loop import TrainingLoop
from gradlab.audit.trace.values import Value


def updates(scenario: Scenario, k: int, optimizer: Value) -> list[Occurrence]:
    """Backward passes and this optimizer's steps in iteration k."""
    key = k, id(optimizer)
    if key not in scenario.updates:
        both = [s for s in scenario.of("backward", "step") if s.k == k]
        own = [s for s in both if s.kind == "backward" or concerns(scenario.loop, s, optimizer)]
        scenario.updates[key] = own
    return scenario.updates[key]


def neighbours(scenario: Scenario, step: Occurrence, optimizer: Value) -> tuple[list[Occurrence], list[Occurrence]]:
    """Backward passes and this optimizer's steps before and after, in the same iteration."""
    around, at = updates(scenario, step.k, optimizer), scenario.places
    before = [s for s in around if at[id(s)] < at[id(step)]]
    return before, [s for s in around if at[id(s)] > at[id(step)]]


@scenario_rule("GL101")
def clip_after_step(scenario: Scenario) -> Iterator[Hit]:
    loop = scenario.loop
    for optimizer in loop.optimizers():
        for clip in scenario.of("clip"):
            if not concerns(loop, clip, optimizer):
                continue
            before, after = neighbours(scenario, clip, optimizer)
            if not scenario.of("step") and is_last(loop, clip) and not uncertain(loop, "optimizer", "self"):
                yield Hit(clip)  # where a flag passes over the step it is of no use, either
            if before and before[-1].kind == "step" and not any(s.kind == "step" for s in after):
                backward = next((s for s in before if s.kind == "backward"), None)
                if backward is not None:
                    yield Hit(clip, (before[-1],))
                    yield Hit(clip, (before[-1], backward), loose=True)  # a flag may pass over it
    yield from clip_of_used(scenario)


def is_last(loop: TrainingLoop, clip: Occurrence) -> bool:
    """Whether all steps of a loop are written before a clip."""
    kinds = [event.kind for event in loop.events[loop.events.index(clip.event) :]]
    return "step" not in kinds


def clip_of_used(scenario: Scenario) -> Iterator[Hit]:
    """A clip behind a step, and gradients are zeroed before the next one, whichever of several optimizers has them."""
    loop = scenario.loop
    optimizers = loop.optimizers()
    for clip in scenario.of("clip") if len(optimizers) > 1 else ():
        if any(concerns(loop, clip, optimizer) is not None for optimizer in optimizers):
            continue
        before = [s for s in scenario.before(clip) if s.k == clip.k and s.kind in ("backward", "step")]
        later = [s for s in scenario.after(clip) if s.kind in ("step", "zero")]
        ahead = [next((s for s in later if concerns(loop, s, o) is not False), None) for o in optimizers]
        zeroed = all(s is not None and s.kind == "zero" and not partial_zero(scenario, s) for s in ahead)
        passes = [s for s in before if s.kind == "backward"]
        used = bool(passes) and before[-1].kind == "step"
        if used and zeroed and not uncertain(loop, "optimizer", "self", scenario=scenario):
            yield Hit(clip, (before[-1], passes[-1]))


@scenario_rule("GL102")
def clip_before_backward(scenario: Scenario) -> Iterator[Hit]:
    loop = scenario.loop
    for optimizer in loop.optimizers():
        for clip in scenario.of("clip"):
            if not concerns(loop, clip, optimizer):
                continue
            before, after = neighbours(scenario, clip, optimizer)
            empty = no_gradients(scenario, clip, optimizer)
            if (
                (before and not empty)
                or not after
                or after[0].kind != "backward"
                or uncertain(loop, "tensor", scenario=scenario)
            ):
                continue
            if loop.statement is None and len(loop.optimizers()) > 1 and not empty:
                continue
            later = (s for s in until_step(scenario, clip, optimizer) if s.kind == "clip")
            if not any(concerns(loop, s, optimizer) and not apart(s, clip) for s in later):
                yield Hit(clip, (after[0],))
    yield from clip_of_zeroed(scenario)


def apart(one: Occurrence, other: Occurrence) -> bool:
    """Whether two clips are of different networks."""
    models = [every(s.event.value) if s.event.value is not None else [] for s in (one, other)]
    known = all(models) and all(model.root().kind in ("model", "ddp") for own in models for model in own)
    return known and not any(overlap(a, b) for a in models[0] for b in models[1])


def clip_of_zeroed(scenario: Scenario) -> Iterator[Hit]:
    """A clip between a zero_grad() and a backward pass, with no gradients of another loss that no step has used.

    Whichever of several optimizers that are handed in has the clipped weights.
    """
    loop = scenario.loop
    optimizers = loop.optimizers()
    for clip in scenario.of("clip") if len(optimizers) > 1 else ():
        around = [s for s in scenario.of("backward", "step", "zero", "clip") if s.k == clip.k]
        at = around.index(clip)
        before, after = around[:at][::-1], around[at + 1 :]
        used = next((s.kind for s in before if s.kind in ("backward", "step")), "step") == "step"
        zeroed = bool(before) and before[0].kind == "zero" and before[0].event.owner is None
        ahead = bool(after) and after[0].kind == "backward" and all(s.kind != "clip" for s in after)
        unknown = all(concerns(loop, clip, optimizer) is None for optimizer in optimizers)
        if unknown and used and zeroed and ahead and not uncertain(loop, "tensor", scenario=scenario):
            yield Hit(clip, (before[0], after[0]))


def until_step(scenario: Scenario, clip: Occurrence, optimizer: Value) -> Iterator[Occurrence]:
    """What follows in the same iteration, up to this optimizer's step."""
    for step in scenario.after(clip):
        if step.k != clip.k or (step.kind == "step" and concerns(scenario.loop, step, optimizer)):
            return
        yield step


def no_gradients(scenario: Scenario, clip: Occurrence, optimizer: Value) -> bool:
    """Whether there was no backward pass since the gradients were set to zero."""
    for step in reversed(scenario.before(clip)):
        if step.k != clip.k or step.kind == "backward":
            return False
        if step.kind == "zero" and concerns(scenario.loop, step, optimizer):
            return not partial_zero(scenario, step)
    return False


@scenario_rule("GL103")
def zero_before_step(scenario: Scenario) -> Iterator[Hit]:
    loop = scenario.loop
    for optimizer in loop.optimizers():
        for zero in scenario.of("zero"):
            if not concerns(loop, zero, optimizer) or partial_zero(scenario, zero):
                continue
            before, after = neighbours(scenario, zero, optimizer)
            after = after or updates(scenario, zero.k + 1, optimizer)
            before = before or updates(scenario, zero.k - 1, optimizer)
            if not (before and before[-1].kind == "backward" and after and after[0].kind == "step"):
                continue
            if gradients_assigned(scenario, zero, after[0]) or batch_rejected(scenario, zero, before[-1]):
                continue
            if instead_of_step(loop, zero):
                continue
            if before_backward(scenario, after[0], optimizer) is not None:
                continue  # the step is in the wrong place: GL701
            between = scenario.steps[scenario.steps.index(before[-1]) : scenario.steps.index(zero)]
            if optimizer.lineage and any(s.kind == "step" for s in between):
                continue  # one of the project's own after another's: a proximal step, which needs no gradients
            if zero.event.node is not after[0].event.node and not uncertain(loop, "tensor", scenario=scenario):
                yield Hit(zero, (before[-1], after[0]))


def gradients_assigned(scenario: Scenario, zero: Occurrence, step: Occurrence) -> bool:
    """Whether gradients are assigned, or may be by a call that cannot be followed, between the two."""
    i, j = scenario.steps.index(zero), scenario.steps.index(step)
    steps = scenario.steps[i:j] if i < j else [*scenario.steps[i:], *scenario.steps[:j]]
    calls = (s.event.receives for s in steps if s.kind == "opaque")
    return any(s.kind == "given" for s in steps) or any(receives & {"params", "gradients"} for receives in calls)


def batch_rejected(scenario: Scenario, zero: Occurrence, backward: Occurrence) -> bool:
    """Whether gradients are set to zero under a flag, or a check of a norm, that may mark a bad batch."""
    loop = scenario.loop
    young = [a for a in loop.atoms if a.birth > loop.birth and a not in loop.boundary]
    flags = {a.key for a in young if a.kind in ("flag", "finite")}
    guards = zero.guards - backward.guards
    return any(key in guard for guard, _ in guards for key in flags if "is not None" not in key)
