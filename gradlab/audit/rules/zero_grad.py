"""Gradients set to zero: never, or inside a window."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gradlab.audit.rules import Hit, rule, uncertain
from gradlab.audit.rules.ownership import concerns, partly
from gradlab.audit.trace.events import Event, If
from gradlab.audit.trace.replay import Step
from gradlab.audit.trace.scenarios import Run
from gradlab.audit.trace.training_loop import Unit


@rule("GL305")
def zero_missing(run: Run) -> Iterator[Hit]:
    unit = run.unit
    if (unit.loop is None and not unit.alone) or uncertain(
        unit, "optimizer", "self", "params", "scaler", "accelerator", "groups"
    ):
        return
    if uncertain(unit, "model", "ddp", but="used"):  # what gives something back computes it
        return
    for optimizer in unit.optimizers():
        if optimizer.birth > unit.birth:
            continue  # a new one in each turn, with what it is given
        zeros = [s for s in run.of("zero") if concerns(unit, s, optimizer) is not False]
        if zeros or any(e.kind == "zero" and e.value is None for e in unit.events):
            continue
        for step in run.of("step"):
            if (
                concerns(unit, step, optimizer)
                and step.event.value is not None
                and step.event.value.kind == "optimizer"
            ):
                backward = [s for s in run.of("backward") if s.k == step.k]
                if backward and again(unit):
                    yield Hit(step, (backward[-1],))


def again(unit: Unit) -> bool:
    """The loop goes round more than once: a parameter, a data set, no loop that is left at once."""
    return not any(getattr(item, "kind", "") == "break" for item in unit.body)


@rule("GL305", on="unit")
def zero_missing_in_closure(unit: Unit) -> Iterator[tuple[str, ast.AST]]:
    """LBFGS calls its closure many times in one step: each call has to begin at zero."""
    for step in unit.events:
        inside = step.data.get("closure", [])
        made = str(step.value.data.get("type", "")) if step.value is not None else ""
        kinds = {e.kind for e in inside}
        if step.kind == "step" and made.endswith("LBFGS") and "backward" in kinds and not kinds & {"zero", "opaque"}:
            yield step.path, step.node


def tried(body: list) -> bool:
    """Whether a loop is left as soon as a backward pass was good: each turn is another try at one batch."""
    begun = False
    for item in body:
        begun = begun or (isinstance(item, Event) and item.kind == "backward")
        if begun and isinstance(item, If) and any(getattr(j, "kind", "") == "break" for j in [*item.then, *item.other]):
            return True
    return False


@rule("GL306", windows=True)
def zero_in_window(run: Run) -> Iterator[Hit]:
    unit = run.unit
    for optimizer in unit.optimizers():
        if any(e.kind == "taken" for e in unit.events):
            return  # gradients are put aside, and may be put back
        if unit.inner and not unit.boundary:
            for zero in run.of("zero"):
                loop = unit.in_window.get(id(zero.event))
                if run.partial(zero) and concerns(unit, zero, optimizer) and not (loop and tried(loop.body)):
                    yield Hit(zero)
            continue
        for zero in run.of("zero"):
            if not concerns(unit, zero, optimizer) or partly(unit, zero) or withheld(unit, zero):
                continue
            pending: Step | None = None
            for step in run.steps[: run.steps.index(zero)]:
                if step.kind == "backward":
                    pending = step
                elif step.kind in ("step", "zero") and concerns(unit, step, optimizer):
                    pending = None
            ahead = next((s for s in run.steps[run.steps.index(zero) :] if s.kind in ("backward", "step")), None)
            if pending is not None and (discarding(run, zero, pending) or run.unused(pending)):
                continue
            if pending is not None and ahead is not None and ahead.kind == "backward":
                if pending.k < zero.k or (pending.k == zero.k and not run.ends(zero.k)):
                    yield Hit(zero, (pending,))


def withheld(unit: Unit, zero: Step) -> bool:
    """Whether Accelerate passes over it inside a window: it does so wherever its optimizer is called."""
    value = zero.event.value
    owner = value.data.get("prepared") if value is not None and value.kind == "optimizer" else None
    return owner is not None and any(r.data.get("of") is owner for e in unit.events for r in e.regions)


def discarding(run: Run, zero: Step, backward: Step) -> bool:
    """Whether gradients are thrown away because of what this batch showed: a loss that is not finite, say."""
    known = {a.key for a in run.unit.atoms if a in run.unit.boundary or run.unit.timed(a)}
    new = run.unit.varying(zero) - run.unit.varying(backward)
    return any(part not in known for key, _ in new for part in key.split(" | "))
