"""DistributedDataParallel: who reduces the gradients, and when."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator

from gradlab.audit.rules import Hit, rule, uncertain
from gradlab.audit.rules.window_remainder import periodic, stepping
from gradlab.audit.trace.conditions import Atom, atoms
from gradlab.audit.trace.events import Event, Region
from gradlab.audit.trace.replay import Step, cases
from gradlab.audit.trace.scenarios import Run
from gradlab.audit.trace.training_loop import Unit
from gradlab.audit.trace.values import Value, members


def wrapped(run: Run) -> bool:
    return any(e.kind == "forward" and e.value is not None and e.value.kind == "ddp" for e in run.unit.events)


@rule("GL501", windows=True)
def missing(run: Run) -> Iterator[Hit]:
    unit = run.unit
    if not wrapped(run) or uncertain(unit, "self"):
        return
    regions = [r for e in unit.events for r in e.regions]
    if any(e.kind == "sync" for e in unit.events) or any(
        r.kind in ("no_sync", "accumulate", "unknown") for r in regions
    ):
        return
    for backward in run.of("backward"):
        if backward.event.data.get("through") is None and run.partial(backward):
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
            forwards = [s for s in run.of("forward") if s.k == last.k]
            if forwards and not any(s.inside("no_sync") for s in forwards):
                continue  # DDP has decided in the forward pass: no_sync() does nothing
            if region is not None and throughout(run, last, region) and not perhaps(run.unit, last, step, region):
                yield Hit(last, (step,), region.node, region=region)


def throughout(run: Run, last: Step, region: Region) -> bool:
    """Whether the region holds at the end of a window: where that is a loop of its own, in each of its turns."""
    loop = run.unit.in_window.get(id(last.event))
    if loop is None:
        return not run.unit.inner
    young = [atom for atom in atoms(region.when) if atom.birth > loop.birth]
    return run.partial(last) and all(atom.ends and run.values.get(atom.key) for atom in young)


def perhaps(unit: Unit, last: Step, step: Step, region: Region) -> bool:
    """Whether the region is up to what an iteration makes anew, which may say that it is the last one."""
    if unit.inner:
        return False
    asked = {a.key for a in atoms(region.when)}
    asked |= {part for key, _ in unit.varying(last) - unit.varying(step) for part in key.split(" | ")}
    return any(
        a.key in asked and a.birth > unit.birth and a not in unit.boundary and not unit.timed(a) for a in unit.atoms
    )


@rule("GL503")
def backward_only(run: Run) -> Iterator[Hit]:
    for backward in run.of("backward"):
        region = backward.inside("no_sync")
        value = backward.event.value
        event = value.data.get("forward") if value is not None else None
        if region is not None and event is None:
            event = only_forward(run, backward)
        if region is None or event is None or event.value is None or region.data.get("of") is not None:
            continue
        if region.value is not None and region.value.kind in ("ddp", "model", "unknown") and "word" in region.data:
            setup = event.value.data.get("prepared")
            fabric = setup is not None and setup.kind == "fabric" and backward.event.data.get("through") is setup
            if all(r.kind != "no_sync" for r in event.regions) and (event.value.kind == "ddp" or fabric):
                yield Hit(backward, (), region.node, region=region)


def only_forward(run: Run, backward: Step) -> Event | None:
    """The forward pass of an iteration, where there is but one; or a call that computes a loss with the network."""
    steps = [s for s in run.of("forward", "passed") if s.k == backward.k and s.event.value is not None]
    at = {(s.event.node.lineno, s.event.node.col_offset): s.event for s in steps if s.kind == "passed"}  # type: ignore
    found = {*at.values(), *(s.event for s in steps if s.kind == "forward")}
    wrapped = [e for e in found if e.value is not None and any(v.kind == "ddp" for v in members(e.value))]
    return wrapped[0] if len(wrapped) == 1 else None


@rule("GL504")
def raw(run: Run) -> Iterator[Hit]:
    for backward in run.of("backward"):
        value = backward.event.value
        if value is None or any(e.kind == "reduce" for e in run.unit.events):
            continue
        yield from raw_forwards(run, backward, dict.fromkeys([value.data.get("forward"), *value.data.get("chain", ())]))


def raw_forwards(run: Run, backward: Step, found: Iterable[Event | None]) -> Iterator[Hit]:
    for event in found:
        if event is None or event.value is None or any(r.kind == "no_grad" for r in event.regions):
            continue
        inner = event.value.data.get("raw") is not None or (
            event.data.get("wrapped") and event.value.data.get("wrapped") and "choice" not in event.value.data
        )
        if any(e.node is event.node and e.value is not None and e.value.kind == "ddp" for e in run.unit.events):
            continue  # the same call, where there are several processes, is the wrapper's
        if inner and event.value.kind != "ddp" and not called_wrapped(run, event.value):
            for step in run.of("forward"):
                if step.event is event and step.k == backward.k:
                    yield Hit(step, (backward,))


def called_wrapped(run: Run, raw: Value) -> bool:
    """Whether the wrapper of this same module is called too; in no_grad it sets no hooks."""
    return any(
        e.kind == "forward" and e.value is not None and e.value.kind == "ddp"
        and (e.value.root() is raw.root() or "choice" in e.value.data or e.value.root().kind != "model")
        and all(r.kind not in ("no_grad", "inference_mode") for r in e.regions)
        for e in run.unit.events
    )  # fmt: skip


@rule("GL505")
def by_hand(run: Run) -> Iterator[Hit]:
    if wrapped(run) and not any(r.kind == "no_sync" for e in run.unit.events for r in e.regions):
        for reduce in run.of("reduce"):
            yield Hit(reduce)


@rule("GL506", on="unit")
def remainder(unit: Unit) -> Iterator[tuple[str, ast.AST]]:
    if not periodic(unit) or stepping(unit) is None:
        return
    late = next((e for e in unit.after if e.kind == "step" and any(e.value is o for o in unit.optimizers())), None)
    if any(e.kind in ("sync", "reduce") for e in unit.events):
        return
    for values in cases([a for a in unit.atoms if not unit.timed(a) and a not in unit.boundary], 4):
        whole, _ = unit.iteration(unit.window - 1, unit.truth(values, unit.window - 1))
        if unsynchronised(unit, whole) is not None:  # at the end of every window: another rule's
            continue
        steps, _ = unit.iteration(0, at_the_end(unit, values))
        region = unsynchronised(unit, steps)
        if region is not None and any(s.kind == "step" for s in steps):
            yield unit.path, region.node
        elif region is not None and late is not None:
            yield late.path, late.node


def unsynchronised(unit: Unit, steps: list[Step]) -> Region | None:
    """The no_sync() that the last backward pass is inside, and not for what an iteration makes anew."""
    backward = next((s for s in reversed(steps) if s.kind == "backward"), None)
    region = backward.inside("no_sync") if backward is not None else None
    if backward is None or region is None:
        return None
    young = {a.key for a in unit.atoms if a.kind == "flag" and a.birth > unit.birth and a not in unit.boundary}
    asked = {a.key for a in atoms(region.when)}
    for guards in [s.guards for s in steps if s.kind == "step"] or [frozenset()]:
        asked |= {part for key, _ in backward.guards ^ guards for part in key.split(" | ")}
    return None if asked & young else region


def at_the_end(unit: Unit, values: dict[str, bool]) -> Callable[[Atom], bool]:
    """The last batch of an epoch, which fills no window."""

    def at(atom: Atom) -> bool:
        if atom in unit.boundary:
            return not unit.boundary[atom]
        return atom.kind == "last" or (atom.kind != "period" and values.get(atom.key, False))

    return at
