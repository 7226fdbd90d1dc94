"""Gradients of another network's loss that are still there when an optimizer steps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise

from gradlab.audit.rules.ownership import concerns, partial_zero, undecided
from gradlab.audit.rules.reach import known, overlap
from gradlab.audit.rules.registry import Hit, scenario_rule
from gradlab.audit.rules.reporting import uncertain
from gradlab.audit.trace.provenance import sources
from gradlab.audit.trace.replay import Occurrence
from gradlab.audit.trace.scenarios import Scenario
from gradlab.audit.trace.training_loop import TrainingLoop, differentiable, same
from gradlab.audit.trace.values import Value


@scenario_rule("GL704")
def gradient_of_another_loss(scenario: Scenario) -> Iterator[Hit]:
    loop = scenario.loop
    optimizers = loop.of_networks()
    if len(optimizers) < 2 or any(o.some or undecided(o) for o in optimizers):
        return
    if uncertain(loop, "optimizer", "gradients", "self", "groups", scenario=scenario):
        return
    if any(not known(o.trained) for o in optimizers):
        yield from of_networks_not_seen(scenario)
        return
    for step in scenario.of("step"):
        own = step.event.value
        if own not in optimizers or own is None or frozen_at_times(scenario, own.trained):
            continue
        if not any(concerns(loop, zero, own) for zero in scenario.of("zero")):
            continue  # another mistake: GL305
        present = since_zeroing(scenario, step)
        for first, second in pairwise(present):
            between = scenario.steps[scenario.places[id(first)] : scenario.places[id(second)]]
            for other in optimizers:
                if other is own or any(overlap(a, b) for a in own.trained for b in other.trained):
                    continue
                mine, theirs = places(loop, first, own.trained), places(loop, first, other.trained)
                if (
                    not mine
                    or not theirs
                    or not places(loop, second, own.trained)
                    or each_feeds_other(loop, first, second, own, other)
                ):
                    continue
                stepped = any(s.kind == "step" and s.event.value is other for s in between)
                zeroed = any(s.kind == "zero" and concerns(loop, s, other) for s in between)
                rest = (s.kind for s in scenario.after(second) if s.k == step.k and s.event.value is other)
                through = bool(places(loop, second, other.trained)) and next(rest, "") != "step"
                if stepped and (through or mine[-1] > theirs[0]):
                    yield Hit(step, (first, second), first.event.node)
                elif zeroed and not stepped and places(loop, second, other.trained):
                    yield Hit(step, (first, second), second.event.node)


def of_networks_not_seen(scenario: Scenario) -> Iterator[Hit]:
    """The same where two losses show which networks two optimizers have: the second goes through the judges alone.

    One optimizer steps behind each loss. The first one goes through the judges last, and through the makers before.
    """
    for (first, between), (second, behind) in pairwise(stretches(scenario)):
        others, owns = ([one for one in part if one.kind == "step"] for part in (between, behind))
        if len(others) != 1 or len(owns) != 1 or behind[0] is not owns[0]:
            continue
        own, other, judges = owns[0].event.value, others[0].event.value, networks(second)
        makers = [one for one in networks(first) if not any(overlap(one, judge) for judge in judges)]
        if own is None or other is None or same(own, other) or frozen_at_times(scenario, judges):
            continue
        start = places(scenario.loop, first, makers)[:1]
        last = bool(start) and all(places(scenario.loop, first, [judge])[-1:] > start for judge in judges)
        kept = all(is_zeroed(one, [other], makers) for one in between if one is not others[0])
        if judges and last and kept and any(is_zeroed(one, [own], judges) for one in scenario.of("zero")):
            yield Hit(owns[0], (first, second), first.event.node)


def stretches(scenario: Scenario) -> list[tuple[Occurrence, list[Occurrence]]]:
    """Each backward pass, and the steps and zeros up to the next one."""
    found: list[tuple[Occurrence, list[Occurrence]]] = []
    for one in scenario.of("backward", "step", "zero"):
        if one.kind == "backward":
            found.append((one, []))
        elif found:
            found[-1][1].append(one)
    return found


def frozen_at_times(scenario: Scenario, models: Iterable[Value]) -> bool:
    """Whether weights of some networks, or of what may be one of them, need no gradient in a part of the loop."""
    frozen = [one.event.value for one in scenario.of("freeze")]
    roots = [value.root() for value in frozen if value is not None]
    return any(one.kind not in ("model", "ddp", "params", "param") or overlap(one, m) for one in roots for m in models)


def networks(backward: Occurrence) -> list[Value]:
    """The networks that a loss comes from."""
    loss = backward.event.value
    found = sources(loss) if loss is not None else []
    return [*dict.fromkeys(e.value.root() for e in found if e.value is not None and differentiable(e))]


def is_zeroed(zero: Occurrence, optimizers: list[Value], models: list[Value]) -> bool:
    """Whether the gradients of one of these are zeroed, and of no other."""
    value = zero.event.value
    if zero.kind != "zero" or value is None or zero.event.by_hand:
        return False
    return any(same(value, one) for one in optimizers) if value.kind == "optimizer" else value.root() in models


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
    """Whether one loss passes through own networks last and the other through the other's: an encoder and a decoder.

    Of a sum the terms count that pass through own networks.
    """
    losses = [one.event.value for one in (first, second)]
    terms = [[part for part in (loss.parts or (loss,)) if passed(loop, part, own.trained)] for loss in losses if loss]
    reached = [[(passed(loop, one, own.trained), passed(loop, one, other.trained)) for one in parts] for parts in terms]
    ends = [{mine[-1] > theirs[-1] for mine, theirs in pairs if theirs} for pairs in reached]
    return any(ends[0] != one for one in ends[1:]) and all(ends)


def places(loop: TrainingLoop, backward: Occurrence, networks: Iterable[Value]) -> list[int]:
    """Where among the loop's events the forward passes of some networks are that a loss comes from."""
    return passed(loop, backward.event.value, networks)


def passed(loop: TrainingLoop, value: Value | None, networks: Iterable[Value]) -> list[int]:
    """The same of any value."""
    passes = {id(e) for e in sources(value)} if value is not None and not value.choice else set()
    return [
        i
        for i, event in enumerate(loop.events)
        if id(event) in passes and event.value is not None and differentiable(event)
        if any(overlap(event.value, m) for m in networks)
    ]
