"""Gradients of another network's loss that are still there when an optimizer steps."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from gradlab.audit.rules.ownership import concerns, partial_zero
from gradlab.audit.rules.reach import known, overlap
from gradlab.audit.rules.registry import Hit, scenario_rule
from gradlab.audit.rules.reporting import uncertain
from gradlab.audit.trace.provenance import sources
from gradlab.audit.trace.replay import Occurrence
from gradlab.audit.trace.scenarios import Scenario
from gradlab.audit.trace.training_loop import TrainingLoop, differentiable
from gradlab.audit.trace.values import Value


@scenario_rule("GL704")
def gradient_of_another_loss(scenario: Scenario) -> Iterator[Hit]:
    loop = scenario.loop
    optimizers = loop.of_networks()
    if len(optimizers) < 2 or any(not known(o.trained) or o.some or o.choice for o in optimizers):
        return
    if uncertain(loop, "optimizer", "gradients", "self", "groups", scenario=scenario):
        return
    for step in scenario.of("step"):
        own = step.event.value
        if own not in optimizers:
            continue
        if not any(concerns(loop, zero, own) for zero in scenario.of("zero")):
            continue  # another mistake: GL305
        present = since_zeroing(scenario, step)
        for first, second in pairwise(present):
            between = scenario.steps[scenario.places[id(first)] : scenario.places[id(second)]]
            for other in optimizers:
                if own is None or other is own or any(overlap(a, b) for a in own.trained for b in other.trained):
                    continue
                mine, theirs = places(loop, first, own), places(loop, first, other)
                if (
                    not mine
                    or not theirs
                    or not places(loop, second, own)
                    or each_feeds_other(loop, first, second, own, other)
                ):
                    continue
                stepped = any(s.kind == "step" and s.event.value is other for s in between)
                zeroed = any(s.kind == "zero" and concerns(loop, s, other) for s in between)
                rest = (s.kind for s in scenario.after(second) if s.k == step.k and s.event.value is other)
                through = bool(places(loop, second, other)) and next(rest, "") != "step"
                if stepped and (through or mine[-1] > theirs[0]):
                    yield Hit(step, (first, second), first.event.node)
                elif zeroed and not stepped and places(loop, second, other):
                    yield Hit(step, (first, second), second.event.node)


def since_zeroing(scenario: Scenario, step: Occurrence) -> list[Occurrence]:
    """The backward passes whose gradients an optimizer steps with, if it zeroes them and when it did is known."""
    found: list[Occurrence] = []
    own = step.event.value
    for one in reversed(scenario.before(step)):
        if one.kind == "backward":
            found.append(one)
        elif one.kind == "step" and one.event.value is own and found:
            return found[::-1]
        elif one.kind == "zero" and concerns(scenario.loop, one, own) is not False:
            return [] if partial_zero(scenario, one) else found[::-1]
        elif one.kind in ("given", "taken", "scale"):
            return []
    return []


def each_feeds_other(loop: TrainingLoop, first: Occurrence, second: Occurrence, own: Value, other: Value) -> bool:
    """Whether one loss passes through own networks last and the other through the other's: an encoder and a decoder."""
    reached = [(places(loop, one, own), places(loop, one, other)) for one in (first, second)]
    if not all(mine and theirs for mine, theirs in reached):
        return False
    ends = {mine[-1] > theirs[-1] for mine, theirs in reached}
    return len(ends) == 2


def places(loop: TrainingLoop, backward: Occurrence, optimizer: Value) -> list[int]:
    """Where among the loop's events the forward passes of an optimizer's networks are that a loss comes from."""
    value = backward.event.value
    passes = {id(e) for e in sources(value)} if value is not None and not value.choice else set()
    return [
        i
        for i, event in enumerate(loop.events)
        if id(event) in passes and event.value is not None and differentiable(event)
        if any(overlap(event.value, m) for m in optimizer.trained)
    ]
