"""DistributedDataParallel: who reduces the gradients, and when."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gradlab.audit.rules import Hit, rule, uncertain
from gradlab.audit.rules.accumulation import periodic, stepping
from gradlab.audit.trace import Run, Step, Unit
from gradlab.audit.tree import Event

RIGHT = """
last = (i + 1) % n == 0
with nullcontext() if last else model.no_sync():
    (criterion(model(x), y) / n).backward()
if last:
    optimizer.step()
    optimizer.zero_grad()
"""


def wrapped(run: Run) -> bool:
    return any(e.kind == "forward" and e.value is not None and e.value.kind == "ddp" for e in run.unit.events)


@rule(
    "GL501",
    "no-sync-missing",
    "advice",
    "DDP reduces the gradients for each micro-batch of a window: no_sync() for all but the last leaves one reduction",
    "Measured: the same update with n reductions instead of one (README, pitfall ddp_sync_every_micro_batch).",
    RIGHT,
)
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


@rule(
    "GL502",
    "no-sync-on-the-last",
    "error",
    "the last backward pass before the step is inside no_sync(), so each rank steps alone: leave the last one outside",
    "Measured on two ranks: the update is 0.35 of a move away from the right one, and the ranks' weights "
    "part (README, pitfall no_sync_off_by_one).",
    RIGHT,
)
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
                yield Hit(last, (step,), region.node, region=region)


@rule(
    "GL503",
    "no-sync-around-backward-only",
    "warning",
    "no_sync() around backward() alone does nothing, DDP decides in the forward pass: put that inside too",
    "Measured: n reductions instead of one, a mistake that no result shows (README, pitfall "
    "no_sync_around_backward_only).",
    RIGHT,
)
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
            if all(r.kind != "no_sync" for r in event.regions) and event.value.kind == "ddp":
                yield Hit(backward, (), region.node, region=region)


def only_forward(run: Run, backward: Step) -> Event | None:
    """The forward pass of an iteration, where there is but one."""
    found = {s.event for s in run.of("forward") if s.k == backward.k and s.event.value is not None}
    wrapped = [e for e in found if e.value is not None and e.value.kind == "ddp"]
    return wrapped[0] if len(wrapped) == 1 else None


@rule(
    "GL504",
    "raw-module-called",
    "error",
    "the model inside DistributedDataParallel is called, so no gradient is reduced: call the wrapper",
    "DDP's hooks are set up in its own forward; a forward pass of the inner module goes past them, each "
    "rank steps with its own gradients, and the weights part.",
    "model = DistributedDataParallel(model)\nloss = criterion(model(x), y)",
)
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


@rule(
    "GL505",
    "reduced-by-hand-too",
    "warning",
    "gradients are reduced by hand beside DistributedDataParallel, which has averaged them: leave it to DDP",
    "A second reduction for nothing; without the division by the number of ranks the gradient is too large by it.",
    "loss.backward()  # DDP has averaged the gradients when it returns\noptimizer.step()",
)
def by_hand(run: Run) -> Iterator[Hit]:
    if wrapped(run) and not any(r.kind == "no_sync" for e in run.unit.events for r in e.regions):
        for reduce in run.of("reduce"):
            yield Hit(reduce)


@rule(
    "GL506",
    "remainder-unsynchronised",
    "error",
    "the last, shorter window of an epoch ends inside no_sync(), so each rank steps alone: leave its last one outside",
    "Measured on two ranks: the update of that window is 0.94 of a move away (README, pitfall "
    "remainder_unsynchronised).",
    "last = (i + 1) % n == 0 or i + 1 == len(loader)\nwith nullcontext() if last else model.no_sync():\n    ...",
    on="unit",
)
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
