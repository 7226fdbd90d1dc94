"""DistributedDataParallel: who reduces the gradients, and when."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gradlab.audit.rules import Hit, rule, uncertain
from gradlab.audit.rules.accumulation import periodic, stepping
from gradlab.audit.trace import Run, Step, Unit


def wrapped(run: Run) -> bool:
    return any(e.kind == "forward" and e.value is not None and e.value.kind == "ddp" for e in run.unit.events)


@rule("GL501")
def missing(run: Run) -> Iterator[Hit]:
    unit = run.unit
    if not unit.accumulating or not wrapped(run) or uncertain(unit, "self"):
        return
    regions = [r for e in unit.events for r in e.regions]
    if any(e.kind == "sync" for e in unit.events) or any(
        r.kind in ("no_sync", "accumulate", "unknown") for r in regions
    ):
        return
    for backward in run.of("backward"):
        if backward.event.data.get("through") is None and (unit.inner or not run.ends(backward.k)):
            yield Hit(backward)


@rule("GL502")
def on_the_last(run: Run) -> Iterator[Hit]:
    last: Step | None = None
    for step in run.steps:
        if step.kind == "backward":
            last = step
        elif step.kind == "reduce":
            last = None
        elif step.kind == "step" and last is not None and last.k == step.k:
            region = last.inside("no_sync")
            if region is not None and not run.unit.inner:
                yield Hit(last, (step,), region.node)


@rule("GL503")
def backward_only(run: Run) -> Iterator[Hit]:
    for backward in run.of("backward"):
        region = backward.inside("no_sync")
        value = backward.event.value
        event = value.data.get("forward") if value is not None else None
        if region is None or event is None or event.value is None or region.data.get("of") is not None:
            continue
        if region.value is not None and region.value.kind in ("ddp", "model", "unknown") and "word" in region.data:
            if all(r.kind != "no_sync" for r in event.regions) and event.value.kind == "ddp":
                yield Hit(backward, (), region.node)


@rule("GL504")
def raw(run: Run) -> Iterator[Hit]:
    for backward in run.of("backward"):
        value = backward.event.value
        event = value.data.get("forward") if value is not None else None
        if event is None or event.value is None or any(e.kind == "reduce" for e in run.unit.events):
            continue
        inner = event.value.data.get("raw") is not None or (
            event.value.data.get("wrapped") and "choice" not in event.value.data
        )
        if inner and event.value.kind != "ddp" and not wrapped(run):
            for step in run.of("forward"):
                if step.event is event and step.k == backward.k:
                    yield Hit(step, (backward,))


@rule("GL505")
def by_hand(run: Run) -> Iterator[Hit]:
    if wrapped(run) and not any(r.kind == "no_sync" for e in run.unit.events for r in e.regions):
        for reduce in run.of("reduce"):
            yield Hit(reduce)


@rule("GL506", on="unit")
def remainder(unit: Unit) -> Iterator[tuple[str, ast.AST]]:
    if not periodic(unit) or stepping(unit) is None:
        return
    regions = [r for e in unit.events if e.kind == "backward" for r in e.regions if r.kind == "no_sync"]
    if not regions or any(a.kind in ("last", "flag") for r in regions for a in atoms_of(r)):
        return
    found = stepping(unit)
    late = next((e for e in unit.after if e.kind == "step" and e.value is not None), None)
    if late is not None and any(late.value is o for o in unit.optimizers()):
        yield late.path, late.node
    elif found is not None and any(a.kind == "last" for a in atoms_of_if(found[0])):
        yield unit.path, regions[0].node


def atoms_of(region):
    from gradlab.audit.conditions import atoms

    return atoms(region.when)


def atoms_of_if(item):
    from gradlab.audit.conditions import atoms

    return atoms(item.test)
