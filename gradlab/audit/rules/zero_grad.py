"""Gradients set to zero: never, or inside a window."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gradlab.audit.rules.accumulation import same_batch
from gradlab.audit.rules.ownership import concerns, instead_of_step, partial_zero
from gradlab.audit.rules.registry import Hit, loop_rule, scenario_rule
from gradlab.audit.rules.reporting import uncertain, within
from gradlab.audit.rules.steps_without_gradient import unreached
from gradlab.audit.trace.event_tree import If, Jump, Node, events
from gradlab.audit.trace.replay import Occurrence
from gradlab.audit.trace.scenarios import Scenario
from gradlab.audit.trace.training_loop import TrainingLoop
from gradlab.audit.trace.values import Value


@scenario_rule("GL305")
def zero_missing(scenario: Scenario) -> Iterator[Hit]:
    loop = scenario.loop
    if loop.statement is None and not loop.self_contained:
        return
    if uncertain(loop, "optimizer", "self", "scaler", "accelerator", "groups", scenario=scenario):
        return
    kinds = ("model", "ddp", "params")
    if uncertain(loop, *kinds, unused=True, scenario=scenario):  # a call whose result is used computes it
        return
    if any(isinstance(item, Jump) and item.kind == "break" for item in loop.body):
        return  # the loop does not go round
    for optimizer in loop.optimizers():
        if optimizer.birth > loop.birth:
            continue  # a new one in each iteration, with what it receives
        zeros = [s for s in scenario.of("zero") if concerns(loop, s, optimizer) is not False]
        if zeros:
            continue
        for step in scenario.of("step"):
            value = step.event.value
            if concerns(loop, step, optimizer) and value is not None and value.kind == "optimizer":
                if unreached(scenario, step, optimizer):
                    continue  # there is nothing to set to zero: GL701
                backward = [s for s in scenario.of("backward") if s.k == step.k]
                assigned = any(s.kind == "given" and s.k == step.k for s in scenario.before(step))
                if backward and not assigned:
                    yield Hit(step, (backward[-1],), *within(loop, step.event))


@loop_rule("GL305")
def zero_missing_in_closure(loop: TrainingLoop) -> Iterator[tuple[str, ast.AST]]:
    """LBFGS calls its closure many times in one step: each call has to begin at zero."""
    for step in loop.events:
        kinds = {e.kind for e in step.closure}
        lbfgs = step.kind == "step" and step.value is not None and step.value.maker.endswith("LBFGS")
        if lbfgs and "backward" in kinds and not kinds & {"zero", "opaque"}:
            yield step.path, step.node


@scenario_rule("GL306", windows=True)
def zero_in_window(scenario: Scenario) -> Iterator[Hit]:
    loop = scenario.loop
    if any(e.kind == "taken" for e in loop.events):
        return  # gradients are stored elsewhere, and may be put back
    for optimizer in loop.optimizers():
        if loop.nested and not loop.boundary:
            yield from zero_in_window_loop(scenario, optimizer)
            continue
        for zero in scenario.of("zero"):
            if not concerns(loop, zero, optimizer) or partial_zero(scenario, zero) or held_back(loop, zero):
                continue
            pending = pending_backward(scenario, zero, optimizer)
            if pending is None or discards(scenario, zero, pending) or scenario.unused(pending):
                continue
            if for_another(scenario, pending, optimizer) or instead_of_step(loop, zero):
                continue
            ahead = next((s for s in scenario.after(zero) if s.kind in ("backward", "step")), None)
            if ahead is not None and ahead.kind == "backward":
                if pending.k < zero.k or (pending.k == zero.k and not scenario.ends(zero.k)):
                    yield Hit(zero, (pending,))


def zero_in_window_loop(scenario: Scenario, optimizer: Value) -> Iterator[Hit]:
    """Where the window is a loop of its own."""
    for zero in scenario.of("zero"):
        window = scenario.loop.in_window.get(id(zero.event))
        if scenario.partial(zero) and concerns(scenario.loop, zero, optimizer):
            passes = events(window.body) if window is not None else []
            repeated = any(same_batch(event.value, window) for event in passes if event.kind == "backward")
            if window is None or not (repeated or retries(window.body)):
                yield Hit(zero)


def retries(body: list[Node]) -> bool:
    """Whether a loop is left after a good backward pass: each iteration is another try at one batch."""
    started = False
    for item in body:
        jumps = [*item.then, *item.other] if isinstance(item, If) else [item]
        if started and any(isinstance(jump, Jump) and jump.kind == "break" for jump in jumps):
            return True
        started = started or any(event.kind == "backward" for event in events([item]))
    return False


def pending_backward(scenario: Scenario, zero: Occurrence, optimizer: Value) -> Occurrence | None:
    """The last backward pass whose gradients are there when they are set to zero."""
    pending: Occurrence | None = None
    for step in scenario.before(zero):
        if step.kind == "backward":
            pending = step
        elif step.kind in ("step", "zero") and concerns(scenario.loop, step, optimizer):
            pending = None
    return pending


def for_another(scenario: Scenario, pending: Occurrence, optimizer: Value) -> bool:
    """Whether gradients are left by another optimizer's loss, after this one's step: a generator's, in its critic."""
    at = scenario.steps.index(pending)
    around = [(i, s) for i, s in enumerate(scenario.steps) if s.k == pending.k and s.kind in ("backward", "step")]
    own = [i for i, s in around if s.kind == "step" and i < at and concerns(scenario.loop, s, optimizer)]
    later = next((s for i, s in around if s.kind == "step" and i > at), None)
    if not own or later is None or concerns(scenario.loop, later, optimizer) is not False:
        return False
    return any(s.kind == "backward" and i < own[-1] for i, s in around)


def held_back(loop: TrainingLoop, zero: Occurrence) -> bool:
    """Whether Accelerate passes over it inside a window: it does so wherever its optimizer is called."""
    value = zero.event.value
    owner = value.prepared if value is not None and value.kind == "optimizer" else None
    if zero.inside("accumulate") is not None and owner is not None and owner.steps is not None:
        # inside the block it acts on the last micro-batch, perhaps before its backward()
        return bool(owner.steps.value == 1)
    return owner is not None and any(r.accelerator is owner for e in loop.events for r in e.regions)


def discards(scenario: Scenario, zero: Occurrence, backward: Occurrence) -> bool:
    """Whether gradients are discarded because of this batch, such as a loss that is not finite.

    Not under a condition that every step has too: then the batch is a good one.
    """
    loop = scenario.loop
    known = {a.key for a in loop.atoms if a in loop.boundary or loop.timed(a)}
    steps = [loop.varying(step) for step in scenario.of("step")]
    always = set.intersection(*steps) if steps else set()
    new = loop.varying(zero) - loop.varying(backward) - always
    return any(part not in known for key, _ in new for part in key.split(" | "))
