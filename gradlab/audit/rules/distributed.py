"""DistributedDataParallel: when the gradients of the ranks are reduced."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from gradlab.audit.knowledge.context_regions import by_hand
from gradlab.audit.rules.registry import Hit, loop_rule, scenario_rule
from gradlab.audit.rules.reporting import uncertain
from gradlab.audit.rules.window_remainder import periodic, window_step
from gradlab.audit.trace.conditions import FALSE, SEVERAL, TRUE, Atom, Formula, atoms, holds, joined
from gradlab.audit.trace.iterables import members
from gradlab.audit.trace.replay import Occurrence, cases
from gradlab.audit.trace.scenarios import Scenario
from gradlab.audit.trace.training_loop import LONGEST, TrainingLoop
from gradlab.audit.trace.values import Event, Region, Value

PASSES = ("forward", "passed")
"""Kinds of events that compute a loss with a network."""


def calls_wrapper(loop: TrainingLoop) -> bool:
    return any(e.kind in PASSES and e.value is not None and e.value.kind == "ddp" for e in loop.events)


@scenario_rule("GL501", windows=True)
def no_sync_missing(scenario: Scenario) -> Iterator[Hit]:
    loop = scenario.loop
    if not calls_wrapper(loop) or uncertain(loop, "self") or any(e.kind == "sync" for e in loop.events):
        return
    if any(r.kind in ("no_sync", "accumulate", "unknown") for e in loop.events for r in e.regions):
        return
    for backward in scenario.of("backward"):
        if backward.event.through is None and scenario.partial(backward):
            yield Hit(backward)


@scenario_rule("GL502")
def no_sync_on_the_last(scenario: Scenario) -> Iterator[Hit]:
    last: Occurrence | None = None
    for step in scenario.steps:
        if step.kind == "backward":
            last = step
        elif step.kind == "reduce":
            last = None
        elif step.kind == "step" and last is not None and last.k == step.k:
            region = unreduced(scenario.steps, last)
            forwards = [s for s in scenario.of("forward") if s.k == last.k]
            if last.inside("no_sync") and forwards and not any(s.inside("no_sync") for s in forwards):
                continue  # DDP has decided in the forward pass: no_sync() does nothing
            if region is None or not throughout(scenario, last, region):
                continue
            between = scenario.steps[scenario.steps.index(last) : scenario.steps.index(step)]
            calls = [s.event for s in between if s.kind == "opaque"]
            if not by_hand(region):
                calls = [call for call in calls if re.search("reduce|sync|average", call.name)]
            if any(call.receives & {"model", "ddp", "params", "self", "framework"} for call in calls):
                continue  # gradients may be reduced by hand too
            if not depends_on_iteration(scenario.loop, last, step, region):
                yield Hit(last, (step,), region.node, region=region)


def unreduced(steps: list[Occurrence], backward: Occurrence) -> Region | None:
    """The region in which a backward pass reduces no gradients; DDP decides that in the forward pass."""
    if (region := backward.inside("no_sync")) is not None:
        return region
    own = [s for s in steps if s.k == backward.k and s.repeat == backward.repeat and s.kind in (*PASSES, "sync")]
    own = [s for s in own if s.inside("no_grad") is None]  # an evaluation, in which DDP decides nothing
    wrapped = [s.inside("no_sync") for s in own if s.kind in PASSES and of_wrapper(s.event)]
    own = [s for s in own if s.kind != "passed"]
    first = next((i for i, s in enumerate(own) if s.kind == "forward"), len(own))
    if any(s.kind == "sync" for s in own[first:]):
        return None  # set for the next forward pass
    found = (s.inside("no_sync") for s in own[first:])
    set_by_hand = next((region for region in found if region is not None and by_hand(region)), None)
    return wrapped[-1] if set_by_hand is None and wrapped and all(wrapped) else set_by_hand


def of_wrapper(forward: Event) -> bool:
    return forward.value is not None and any(one.kind == "ddp" for one in members(forward.value))


def throughout(scenario: Scenario, last: Occurrence, region: Region) -> bool:
    """Whether the region is active at the end of a window: where that is a loop of its own, in all its iterations."""
    window = scenario.loop.in_window.get(id(last.event))
    if window is None:
        return not scenario.loop.nested
    inside = [s for s in scenario.steps if region in s.active and s.kind in PASSES]
    asked = {part for s in inside for key, _ in s.guards for part in key.split(" | ")}
    deciding = {*atoms(region.when), *(atom for atom in scenario.loop.atoms if atom.key in asked)}
    young = [atom for atom in deciding if atom.birth > window.birth]
    return scenario.partial(last) and all(
        scenario.values.get(atom.key, False) == at_end for atom in young for at_end in [at_the_last(atom)]
    )


def at_the_last(atom: Atom) -> bool | None:
    """The truth of a comparison in the last of several iterations: `i == 0` holds in the first alone."""
    if atom.ends:
        return True
    later = {bool(atom.at(k)) for k in range(1, LONGEST)} if atom.at is not None else set()
    return later.pop() if len(later) == 1 else None


def depends_on_iteration(loop: TrainingLoop, last: Occurrence, step: Occurrence, region: Region) -> bool:
    """Whether the region depends on what an iteration computes, which may mark the last one."""
    if loop.nested:
        return False
    asked = {a.key for a in atoms(region.when)}
    asked |= {part for key, _ in loop.varying(last) - loop.varying(step) for part in key.split(" | ")}
    return any(a.key in asked and a.birth > loop.birth for a in loop.open_atoms())


@scenario_rule("GL503")
def no_sync_around_backward_only(scenario: Scenario) -> Iterator[Hit]:
    for backward in scenario.of("backward"):
        region, value = backward.inside("no_sync"), backward.event.value
        if region is None or region.accelerator is not None:
            continue
        event = value.forward if value is not None else None
        if event is None:
            event = only_forward(scenario, backward)
        if event is None or event.value is None or region.value is None or region.context is None:
            continue
        if region.value.kind in ("ddp", "model", "unknown") and region.context.word:
            setup = event.value.prepared
            fabric = setup is not None and setup.kind == "fabric" and backward.event.through is setup
            if all(r.kind != "no_sync" for r in event.regions) and (event.value.kind == "ddp" or fabric):
                yield Hit(backward, (), region.node, region=region)


def only_forward(scenario: Scenario, backward: Occurrence) -> Event | None:
    """The forward pass of an iteration, where there is only one; or a call that computes a loss with the network."""
    events = [s.event for s in scenario.of("forward", "passed") if s.k == backward.k and s.event.value is not None]
    at = {(getattr(e.node, "lineno", 0), getattr(e.node, "col_offset", 0)): e for e in events if e.kind == "passed"}
    found = {*at.values(), *(e for e in events if e.kind == "forward")}
    wrapped = [e for e in found if of_wrapper(e)]
    return wrapped[0] if len(wrapped) == 1 else None


@scenario_rule("GL504")
def wrapper_bypassed(scenario: Scenario) -> Iterator[Hit]:
    if any(e.kind == "reduce" for e in scenario.loop.events):
        return
    for backward in scenario.of("backward"):
        value = backward.event.value
        if value is not None:
            found = [value.forward, *value.chain]
            given = any(
                e.kind == "passed" or (e.kind == "opaque" and "ddp" in e.receives) for e in scenario.loop.events
            )
            if not any(found) and not given:  # a loss that nothing is known of
                found = [s.event for s in scenario.before(backward) if s.kind == "forward"]
            yield from raw_forwards(scenario, backward, dict.fromkeys(found))
            yield from raw_passed(scenario, backward)


def raw_passed(scenario: Scenario, backward: Occurrence) -> Iterator[Hit]:
    """The module inside is given to what computes the loss, and nothing calls the wrapper or is given it."""
    passed = [s for s in scenario.of("passed") if s.k == backward.k and s.inside("no_grad") is None]
    for step in passed:
        model = step.event.value
        if model is not None and model.raw is not None and not wrapper_called(scenario, model):
            if not any(of_wrapper(s.event) for s in passed) and step in scenario.before(backward):
                yield Hit(step, (backward,), fault=partial(taken_out, model))


def raw_forwards(scenario: Scenario, backward: Occurrence, found: Iterable[Event | None]) -> Iterator[Hit]:
    """Forward passes of a module that DistributedDataParallel wraps, without the wrapper."""
    for event in found:
        if event is None or event.value is None or any(r.kind == "no_grad" for r in event.regions):
            continue
        model = event.value
        inner = model.raw is not None or (event.wrapped and model.wrapped and not model.choice)
        wrappers = (e for e in scenario.loop.events if e.value is not None and e.value.kind == "ddp")
        if any(e.node is event.node for e in wrappers):
            continue  # the same call, where there are several processes, is the wrapper's
        if inner and model.kind != "ddp" and not wrapper_called(scenario, model):
            for step in scenario.of("forward"):
                if step.event is event and step.k == backward.k:
                    yield Hit(step, (backward,), fault=partial(taken_out, model))


def taken_out(model: Value, given: Value) -> bool:
    """Whether a value is this module, taken out of a wrapper."""
    return given is model or (given.raw is not None and given.raw is model.raw)


def wrapper_called(scenario: Scenario, raw: Value) -> bool:
    """Whether the wrapper of this module is called too; in no_grad it sets no hooks."""
    calls = (s.event for s in scenario.of("forward"))
    return any(
        e.value is not None
        and e.value.kind == "ddp"
        and (e.value.root() is raw.root() or e.value.choice or e.value.root().kind != "model")
        and all(r.kind not in ("no_grad", "inference_mode") for r in e.regions)
        for e in calls
    )


@scenario_rule("GL505")
def reduced_by_hand(scenario: Scenario) -> Iterator[Hit]:
    loop = scenario.loop
    if calls_wrapper(loop) and not any(r.kind == "no_sync" for e in loop.events for r in e.regions):
        forwards = [s for s in scenario.of("forward") if s.inside("no_grad") is None]
        wrapping = [wrapped_when(s.event.value or Value()) for s in forwards]
        known = {unnumbered(a.key) for a in [*loop.boundary, *(a for when in wrapping for a in atoms(when))]}
        for reduce in scenario.of("reduce"):
            surely = (s for s, when in zip(forwards, wrapping) if when == TRUE and s.k == reduce.k)
            asked = {unnumbered(key): truth for key, truth in reduce.guards if "is not None" not in key}
            if asked.get(SEVERAL[1].key):  # as there are wherever a network is wrapped
                del asked[SEVERAL[1].key]
            if (forward := next(surely, None)) is not None:
                yield Hit(reduce, (forward,))
            elif asked.keys() <= known and any(may_hold_where(when, asked) for when in wrapping):
                yield Hit(reduce)


def may_hold_where(when: Formula, asked: dict[str, bool]) -> bool:
    """Whether a condition may hold where others have a truth."""
    free = list(dict.fromkeys(key for a in atoms(when) if (key := unnumbered(a.key)) not in asked))[:8]
    found = (asked | dict(zip(free, values)) for values in itertools.product((True, False), repeat=len(free)))
    return any(holds(when, lambda a, truth=truth: truth.get(unnumbered(a.key), True)) for truth in found)  # type: ignore[misc]


def unnumbered(key: str) -> str:
    """A condition's text: a flag that is read twice, before a loop and in it, is taken for one."""
    return re.sub(r"#\d+", "", key)


def wrapped_when(model: Value) -> Formula:
    """The condition under which a model is DDP's wrapper."""
    if not model.choice:
        return TRUE if model.kind == "ddp" else FALSE
    return joined("or", [when for when, one in model.choice if one.kind == "ddp"])


@loop_rule("GL506")
def remainder_unsynchronised(loop: TrainingLoop) -> Iterator[tuple[str, ast.AST]]:
    if not periodic(loop) or window_step(loop) is None or any(e.kind == "reduce" for e in loop.events):
        return
    late = next((e for e in loop.after if e.kind == "step" and any(e.value is o for o in loop.optimizers())), None)
    for values in cases(loop.open_atoms(), 4):
        whole, _ = loop.iteration(loop.window - 1, loop.truth(values, loop.window - 1))
        if unsynchronised(loop, whole) is not None:  # at the end of every window: GL502
            continue
        steps, _ = loop.iteration(0, at_the_end(loop, values))
        region = unsynchronised(loop, steps)
        if region is not None and any(s.kind == "step" for s in steps):
            yield loop.path, region.node
        elif region is not None and late is not None:
            yield late.path, late.node


def unsynchronised(loop: TrainingLoop, steps: list[Occurrence]) -> Region | None:
    """The no_sync() around the last backward pass, unless it depends on what an iteration computes."""
    backward = next((s for s in reversed(steps) if s.kind == "backward"), None)
    region = unreduced(steps, backward) if backward is not None else None
    if backward is None or region is None:
        return None
    young = {a.key for a in loop.atoms if a.kind == "flag" and a.birth > loop.birth and a not in loop.boundary}
    asked = {a.key for a in atoms(region.when)}
    for guards in [s.guards for s in steps if s.kind == "step"] or [frozenset()]:
        asked |= {part for key, _ in backward.guards ^ guards for part in key.split(" | ")}
    return None if asked & young else region


def at_the_end(loop: TrainingLoop, values: dict[str, bool]) -> Callable[[Atom], bool]:
    """The last batch of an epoch, which fills no window."""

    def at(atom: Atom) -> bool:
        if atom in loop.boundary:
            return not loop.boundary[atom]
        if atom.kind == "last" and loop.timed(atom):
            return True
        return atom.kind != "period" and values.get(atom.key, False)

    return at
