"""Schedules count updates."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from gradlab.audit.rules import Hit, rule
from gradlab.audit.trace import Run, Unit
from gradlab.audit.tree import Loop, events

RIGHT = """
if (i + 1) % n == 0:
    optimizer.step()
    optimizer.zero_grad()
    scheduler.step()
"""
COUNTED = re.compile(r"len\(")
SHORTER = re.compile(r"//|/|accum|ceil|update", re.I)


def in_batches(scheduler) -> bool | None:
    """Whether a schedule's length is counted in micro-batches; None where it is not said."""
    said = [text for text in scheduler.data.get("length", []) if COUNTED.search(text)]
    return not any(SHORTER.search(text) for text in said) if said else None


@rule(
    "GL401",
    "schedule-every-micro-batch",
    "warning",
    "the schedule is stepped for each micro-batch, n times too fast for one that counts updates: step it "
    "once an update",
    "Measured: the rate of a warm-up is 4 times too high at first (README, pitfall schedule_per_micro_batch).",
    RIGHT,
)
def every_micro_batch(run: Run) -> Iterator[Hit]:
    unit = run.unit
    if not unit.accumulating:
        return
    for schedule in run.of("schedule"):
        owner = schedule.event.value
        if (
            owner is None
            or owner.data.get("prepared") is not None
            or in_batches(owner)
            or schedule.event.data["arguments"]
        ):
            continue
        if (unit.boundary and not run.ends(schedule.k)) or (not unit.boundary and unit.each(schedule, run)):
            yield Hit(schedule)


@rule(
    "GL402",
    "schedule-before-step",
    "warning",
    "the schedule is stepped before the optimizer, its first rate is never used: call optimizer.step() first",
    "PyTorch warns of it since 1.1; every rate comes one update early.",
    "optimizer.step()\nscheduler.step()",
)
def before_step(run: Run) -> Iterator[Hit]:
    for schedule in run.of("schedule"):
        if schedule.event.data["arguments"]:
            continue
        if any(s.event is schedule.event and not run.ends(s.k) for s in run.of("schedule")):
            continue  # once a micro-batch, which is another mistake
        at = run.steps.index(schedule)
        steps = [s for s in run.of("step") if s.k == schedule.k and matches(schedule, s)]
        earlier = [s for s in steps if run.steps.index(s) < at]
        later = [s for s in steps if run.steps.index(s) > at]
        if later and not earlier and (run.unit.loop is not None):
            yield Hit(schedule, (later[0],))


def matches(schedule, step) -> bool:
    optimizer = schedule.event.value.data.get("optimizer") if schedule.event.value is not None else None
    return optimizer is None or step.event.value is None or optimizer is step.event.value


@rule(
    "GL404",
    "schedule-before-epoch",
    "warning",
    "the schedule is stepped before any update of the epoch, its first rate is never used: step it after the epoch",
    "PyTorch warns of it since 1.1; every rate comes one epoch early.",
    "for epoch in range(epochs):\n    for x, y in loader:\n        ...\n        optimizer.step()\n    scheduler.step()",
    on="unit",
)
def before_epoch(unit: Unit) -> Iterator[tuple[str, ast.AST]]:
    if not unit.outer or unit.loop is None:
        return
    for item in unit.outer[-1].body:
        if item is unit.loop:
            return
        if isinstance(item, Loop) or any(e.kind == "step" for e in events([item])):
            return
        for event in events([item]):
            if event.kind == "schedule" and not event.data["arguments"] and event.value is not None:
                if str(event.value.data.get("type", "")).startswith("torch.optim"):
                    yield event.path, event.node


@rule(
    "GL403",
    "schedule-length-in-micro-batches",
    "warning",
    "the schedule's length is counted in micro-batches, but it is stepped once a window: divide its length by n",
    "Training ends after 1/n of the schedule's course: a cosine hardly falls, and a warm-up takes n times as long.",
    "updates = epochs * math.ceil(len(loader) / n)\nscheduler = CosineAnnealingLR(optimizer, T_max=updates)",
)
def length(run: Run) -> Iterator[Hit]:
    if not run.unit.boundary:
        return
    for schedule in run.of("schedule"):
        owner = schedule.event.value
        if owner is None or owner.data.get("prepared") is not None or not in_batches(owner):
            continue
        if all(run.ends(s.k) for s in run.of("schedule")):
            yield Hit(schedule, (), owner.data.get("call") if owner.data.get("path") == schedule.event.path else None)
