"""When a rule's hits are reported, and where."""

from __future__ import annotations

import ast
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

from gradlab.audit.rules.registry import Hit, Rule
from gradlab.audit.trace.conditions import Atom, Formula
from gradlab.audit.trace.replay import Occurrence
from gradlab.audit.trace.scenarios import Scenario
from gradlab.audit.trace.training_loop import TrainingLoop
from gradlab.audit.trace.values import Event, Frame, Value

ACTIONS = {"backward", "step", "zero", "clip", "unscale", "update", "schedule", "scale", "forward", "opaque"}
ORDERED = ("zero", "clip", "unscale", "schedule", "update")
"""Kinds of events whose place among the others decides whether they are right."""


class Place(NamedTuple):
    """Where a mistake is reported, and what the message says besides."""

    path: str
    node: ast.AST
    note: str = ""


def reported(rule: Rule, loop: TrainingLoop, scenarios: list[Scenario]) -> Iterator[Place]:
    """The place of each hit that occurs in every scenario in which all its events happen."""
    if rule.scenario is None:
        return
    scenarios = [scenario for scenario in scenarios if scenario.accumulating] if rule.windows else scenarios
    varying = varying_keys(loop) if rule.windows else set()
    hits: dict[tuple[int, tuple[int, ...]], tuple[Hit, int]] = {}
    for scenario in scenarios:
        seen = set()
        for hit in rule.scenario(scenario):
            shared = frozenset(guard for other in hit.others for guard in other.guards)
            own = scenario.own_guards(hit.step) - shared
            if hit.step.kind in ORDERED and any(key in guard for guard, _ in own for key in varying):
                continue  # where in the window it happens is not known
            related = [hit] if hit.flows or nested(loop, [hit.step, *hit.others], hit.loose) else []
            for one in [*related, replace(hit, others=())]:  # alone it is wrong wherever it happens
                key = (id(one.node or one.step.event), tuple(id(o.event) for o in one.others))
                if key not in seen:
                    seen.add(key)
                    hits[key] = (one, hits.get(key, (one, 0))[1] + 1)
    for hit, count in hits.values():
        if count >= sum(possible(hit, scenario) for scenario in scenarios):
            if hit.fault is not None:
                yield giving_call(hit.step.event, hit.fault)
            elif hit.node is None and hit.step.kind in (*ORDERED, "step"):
                yield call_position(loop, hit.step.event)
            else:
                place = Place(hit.path or hit.step.event.path, hit.node or hit.step.event.node)
                yield used(place, hit.step.event) if hit.made else place


def varying_keys(loop: TrainingLoop) -> set[str]:
    """Keys of the conditions that change from iteration to iteration and do not decide where a window ends."""
    return {
        a.key
        for a in loop.atoms
        if a not in loop.boundary
        and (
            (a.kind == "flag" and (a.birth > loop.birth or "index+" in a.key) and not is_optional(loop, a))
            or (a.kind == "period" and not loop.timed(a))
        )
    }


def is_optional(loop: TrainingLoop, atom: Atom) -> bool:
    """Whether a condition says that a function that is called once a batch was given an argument: always, or never."""
    return loop.statement is None and atom.key.endswith(" is not None")


def possible(hit: Hit, scenario: Scenario) -> bool:
    """Whether all events of a hit happen in a scenario, with the region and the flags that it depends on."""
    return (
        {id(s.event) for s in [hit.step, *hit.others]} <= {id(s.event) for s in scenario.steps}
        and (hit.region is None or any(hit.region in s.active for s in scenario.steps))
        and may_hold(scenario, hit.when)
    )


def may_hold(scenario: Scenario, when: Formula) -> bool:
    """Whether a condition may hold in a scenario: flags that decide nothing in it may be anything."""
    return may_be(when, scenario.values, True)


def may_be(formula: Formula, values: dict[str, bool], truth: bool) -> bool:
    """Whether a formula may have a truth, where flags without a value may be anything."""
    word = formula[0]
    if word in ("true", "false"):
        return bool((word == "true") == truth)
    if word == "atom":
        return values.get(formula[1].key, truth) == truth
    if word == "not":
        return may_be(formula[1], values, not truth)
    parts = (may_be(part, values, truth) for part in formula[1])
    return all(parts) if (word == "and") == truth else any(parts)


def giving_call(event: Event, fault: Callable[[Value], bool]) -> Place:
    """Where a value was given away that is wrong for what uses it: the outermost of the calls that it came through.

    Or the call that made the object whose method uses it. The functions between are right for every other value.
    """

    def given(one: Frame) -> bool:
        return isinstance(one.call, ast.Call) and any(map(fault, one.args))

    path, node = event.path, event.node
    for frame in reversed(event.frames):
        made = (value.making for value in frame.args if value.making is not None)
        giver = frame if given(frame) else next(filter(given, made), None)
        if giver is None:
            break
        path, node = giver.module.path, giver.call
        if giver is not frame:
            break
    return used(Place(path, node), event)


def used(place: Place, event: Event) -> Place:
    """Where a value is made or given away, with the line that uses it if that is another."""
    line, path = getattr(event.node, "lineno", 1), event.path
    if (place.path, getattr(place.node, "lineno", 1)) == (path, line):
        return place
    return place._replace(note=f"; used in line {line} of {os.path.basename(path)}")


def call_position(loop: TrainingLoop, event: Event) -> Place:
    """Where an order is decided: the call of a helper that does nothing else, of the same object or of none."""
    path, node = event.path, event.node
    for frame in reversed(event.frames):
        inside = {e.kind for e in loop.events if any(other.call is frame.call for other in e.frames)}
        own = frame.own or event.kind in ("step", "zero")  # of an optimizer that is wrapped
        if not own or not isinstance(frame.call, ast.Call) or inside & ACTIONS != {event.kind}:
            break
        path, node = frame.module.path, frame.call
    return Place(path, node)


def within(loop: TrainingLoop, event: Event) -> tuple[ast.AST | None, str]:
    """Where the file of a loop calls what is in another one: its text and the file; nothing where it does itself."""
    calls = [frame.call for frame in event.frames if frame.module.path == loop.path]
    return (calls[-1], loop.path) if calls and event.path != loop.path else (None, "")


def nested(loop: TrainingLoop, steps: list[Occurrence], loose: bool = False) -> bool:
    """Whether the conditions of one are among those of the other: then no unknown relation of flags is assumed."""
    timed = {a.key for a in loop.atoms if a in loop.boundary or loop.timed(a) or a.kind in ("finite", "last")}
    guards = [frozenset(g for g in step.guards if not any(t in g[0] for t in timed)) for step in steps]
    return all(a <= b or b <= a or (loose and all(positive for _, positive in a ^ b)) for a in guards for b in guards)


def uncertain(loop: TrainingLoop, *kinds: str, unused: bool = False, scenario: Scenario | None = None) -> bool:
    """Whether a call that could not be followed received one of these kinds, or the program belongs to a framework.

    unused: only calls whose results nothing uses; scenario: not those that happen in other scenarios alone.
    """
    what = {*kinds, "framework"}
    found = [e for e in loop.events if e.kind == "opaque" and e.receives & what and not (unused and e.used)]
    found = [e for e in found if id(e) not in loop.rejecting]
    if scenario is not None and found:
        here = {id(step.event) for step in scenario.steps}
        found = [e for e in found if id(e) in here or id(e) not in loop.happening | loop.impossible]
    loop.unresolved += found
    return bool(found)
