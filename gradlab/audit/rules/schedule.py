"""Schedules count updates."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from gradlab.audit.rules import Hit, rule
from gradlab.audit.trace.conditions import atoms, holds
from gradlab.audit.trace.events import Block, Event, If, Loop, events, walk
from gradlab.audit.trace.scenarios import Run
from gradlab.audit.trace.training_loop import Unit
from gradlab.audit.trace.values import Value, members

COUNTED = re.compile(r"len\(")
TORCH = re.compile(
    r"torch\.optim\.lr_scheduler|torch\.optim import lr_scheduler|transformers|diffusers|get_\w*schedule"
)
SHORTER = re.compile(r"//|/|accum|ceil|update", re.I)


def alternatives(schedule: Value) -> list[Value]:
    """The schedules that a value may be."""
    return [found for one in members(schedule) for found in one.data.get("among", [one])]


def in_batches(schedule: Value) -> bool:
    """Whether a schedule's length is counted in micro-batches; the warm-up's comes before that of the whole."""
    said = [text for text in schedule.data.get("length", []) if COUNTED.search(text)]
    return bool(said) and not SHORTER.search(said[-1])


@rule("GL401", windows=True)
def every_micro_batch(run: Run) -> Iterator[Hit]:
    for schedule in run.of("schedule"):
        owner = schedule.event.value
        if (
            owner is None
            or owner.data.get("prepared") is not None
            or any(map(in_batches, alternatives(owner)))
            or schedule.event.data["arguments"]
        ):
            continue
        stretched = any(re.search(r"\* *[\w.]*accum", text) for text in owner.data.get("length", []))
        if run.partial(schedule) and not (stretched and schedule.inside("accumulate")):
            yield Hit(schedule)


@rule("GL402")
def before_step(run: Run) -> Iterator[Hit]:
    for schedule in run.of("schedule"):
        if schedule.event.data["arguments"] or (schedule.event.value and schedule.event.value.data.get("rewound")):
            continue
        inside = id(schedule.event) in run.unit.in_window and run.partial(schedule)
        if inside or any(s.event is schedule.event and not run.ends(s.k) for s in run.of("schedule")):
            continue  # once a micro-batch, which is another mistake
        if not counts_after(schedule.event) or any(
            e.kind == "schedule" and e.data["arguments"] and e.value is schedule.event.value for e in run.unit.events
        ):
            continue
        at = run.steps.index(schedule)
        steps = [s for s in run.of("step") if s.k == schedule.k and matches(schedule, s)]
        earlier = [s for s in steps if run.steps.index(s) < at]
        later = [s for s in steps if run.steps.index(s) > at]
        varying = {a.key for a in run.unit.atoms if a.kind == "flag" and a.birth > run.unit.birth}
        alone = schedule.guards - later[0].guards if later else frozenset()
        if any(key in guard for guard, _ in alone for key in varying if "is not None" not in key):
            continue  # not at first, perhaps
        begun = any(s.kind == "backward" and s.k == schedule.k for s in run.steps[:at])
        if later and not earlier and (run.unit.loop is not None or begun):
            yield Hit(schedule, (later[0],))


def counts_after(event: Event) -> bool:
    """Whether a schedule is known to give its first rate before its first step: one of the project's own may count on.

    Of one that is handed in the type is not known; where the file speaks of PyTorch's it is taken for one of these.
    """
    owner = event.value
    if owner is None or any(one.data.get("class") is not None for one in alternatives(owner)):
        return False
    types = [str(one.data.get("type", "")) for one in alternatives(owner)]
    return all(TORCH.search(made) for made in types) or bool(TORCH.search(event.data["speaks"]))


def matches(schedule, step) -> bool:
    """Whether a step is that of the optimizer whose rate a schedule sets: of several, of one of them."""
    if schedule.event.value is None or step.event.value is None:
        return True
    made = [one.data.get("optimizer") for one in members(schedule.event.value)]
    own = {id(v) for optimizer in made if optimizer is not None for v in (optimizer, *members(optimizer))}
    return not own or any(id(v) in own for v in (step.event.value, *members(step.event.value)))


@rule("GL404", on="unit")
def before_epoch(unit: Unit) -> Iterator[tuple[str, ast.AST]]:
    if not unit.outer or unit.loop is None:
        return
    for item in leading(unit.outer[-1].body, unit.loop):
        if isinstance(item, Loop) or any(e.kind == "step" for e in events([item])):
            return
        for event in first(item, unit.outer[-1].birth):
            if event.kind == "schedule" and not event.data["arguments"] and event.value is not None:
                if event.value.data.get("rewound"):
                    continue  # its count was set back by hand
                if str(event.value.data.get("type", "")).startswith("torch.optim"):
                    yield event.path, event.node


def first(item, birth: int) -> list[Event]:
    """What happens in the first turn of a loop that began then: under `if epoch >= 5` nothing does."""
    late: set[int] = set()
    for test in walk([item]):
        if isinstance(test, If) and (varying := [a for a in atoms(test.test) if a.birth > birth]):
            known = all(a.at is not None for a in varying)
            now = known and holds(test.test, lambda a: a.at is None or bool(a.at(0)))
            late |= {id(e) for e in events(test.other if now else [test] if not known else test.then)}
    return [event for event in events([item]) if id(event) not in late]


def leading(items: list, loop: Loop) -> Iterator:
    """What comes before a loop, in the calls that it is in too."""
    for item in items:
        if item is loop:
            return
        if isinstance(item, Block) and loop in walk([item]):
            yield from leading(item.body, loop)
            return
        yield item


@rule("GL403")
def length(run: Run) -> Iterator[Hit]:
    if not run.unit.boundary:
        return
    for schedule in run.of("schedule"):
        owner = schedule.event.value
        if owner is None or owner.data.get("prepared") is not None or not all(map(in_batches, alternatives(owner))):
            continue
        if all(run.ends(s.k) for s in run.of("schedule")):
            yield Hit(schedule, (), owner.data.get("call") if owner.data.get("path") == schedule.event.path else None)
