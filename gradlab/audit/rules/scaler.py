"""The loss scale: unscale once, before clipping; step and update through the scaler."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from gradlab.audit.rules import Hit, rule, uncertain, under
from gradlab.audit.rules.ownership import concerns
from gradlab.audit.trace.conditions import FALSE, TRUE
from gradlab.audit.trace.replay import Step
from gradlab.audit.trace.scenarios import Run
from gradlab.audit.trace.training_loop import Unit
from gradlab.audit.trace.values import Value


def scaled(step: Step) -> Value | None:
    value = step.event.value
    found = value.data.get("scaled") if value is not None else None
    return found if found is not None and found.data.get("enabled") != FALSE else None


def scaling(run: Run, step: Step) -> bool:
    """Whether a loss is scaled in this case: what the scaler's `enabled` says is among its flags."""
    found = scaled(step)
    return found is not None and under(run, found.data.get("enabled", TRUE))


def within(step: Step) -> bool:
    """A backward of Accelerate or Fabric in fp16, which scales the loss with a scaler of its own."""
    through = step.event.data.get("through")
    return through is not None and bool(through.data.get("fp16"))


def apex(clip: Step, backward: Step) -> bool:
    """Both inside one `with amp.scale_loss`, which unscales at its end."""
    region = clip.inside("scale_loss")
    return region is not None and backward.inside("scale_loss") is region


def since(run: Run, step: Step, optimizer: Value | None = None) -> list[Step]:
    """What happened before a step, back to the last optimizer step."""
    found: list[Step] = []
    for other in reversed(run.steps[: run.steps.index(step)]):
        if other.kind == "step" and (optimizer is None or other.event.value is optimizer):
            break
        found.append(other)
    return found


@rule("GL201")
def clip_before_unscale(run: Run) -> Iterator[Hit]:
    for clip in run.of("clip"):
        earlier = since(run, clip)
        if clip.event.data.get("through") is not None or any(s.kind == "scale" for s in earlier):
            continue
        mine = [o for o in run.unit.optimizers() if concerns(run.unit, clip, o)]
        if any(s.kind == "unscale" and (not mine or any(concerns(run.unit, s, o) for o in mine)) for s in earlier):
            continue
        backward = next((s for s in earlier if s.kind == "backward"), None)
        first = max((i for i, s in enumerate(earlier) if s.kind == "backward"), default=0)
        if (
            backward is not None
            and (scaled(backward) or within(backward) or apex(clip, backward))
            and not hidden(run, earlier[:first], "scaler", "optimizer", "self")
        ):
            later = run.steps[run.steps.index(clip) :]
            if any(s.kind == "step" and s.k == clip.k for s in later) or run.accumulating:
                yield Hit(clip, (backward,), loose=True)


def hidden(run: Run, steps: list[Step], *kinds: str) -> bool:
    """Whether one of these steps is a call that could not be followed and was handed one of these."""
    calls = [s.event for s in steps if s.kind == "opaque" and s.event.data["receives"] & {*kinds}]
    run.unit.doubts += calls
    return bool(calls) or uncertain(run.unit)


@rule("GL202")
def unscale_twice(run: Run) -> Iterator[Hit]:
    for unscale in run.of("unscale"):
        for other in since(run, unscale):
            if other.kind == "update":
                break
            if other.kind == "unscale" and other.k == unscale.k and other.event.value is unscale.event.value:
                if other.turn == unscale.turn and other.event is not unscale.event:
                    yield Hit(unscale, (other,))
                    break


@rule("GL203", windows=True)
def unscale_each(run: Run) -> Iterator[Hit]:
    for unscale in run.of("unscale"):
        if run.partial(unscale):
            yield Hit(unscale)


def both_ways(unit: Unit) -> bool:
    """Whether a loop does all with a scaler and all without, by two conditions that may go together."""
    losses = {e.value.data.get("scaled") is not None for e in unit.events if e.kind == "backward" and e.value}
    return len(losses) == 2 and len({bool(e.data.get("scaler")) for e in unit.events if e.kind == "step"}) == 2


@rule("GL204")
def step_past_scaler(run: Run) -> Iterator[Hit]:
    if both_ways(run.unit):
        return
    for step in run.of("step"):
        if step.event.data.get("scaler") is not None:
            continue
        backward = next((s for s in since(run, step, step.event.value) if s.kind == "backward"), None)
        finite = any("finite" in g[0] or "isnan" in g[0] or "isinf" in g[0] for g in step.guards)
        if backward is not None and scaling(run, backward) and not finite:
            if not any(
                s.kind == "step" and s.event.data.get("scaler") and s.k == step.k and s.event.value is step.event.value
                for s in run.steps
            ):
                owner = scaled(backward)
                yield Hit(step, (backward,), when=owner.data.get("enabled", TRUE) if owner is not None else TRUE)


@rule("GL205")
def update_missing(run: Run) -> Iterator[Hit]:
    unit = run.unit
    if uncertain(unit, "scaler", "self") or (
        unit.loop is None and unit.events and any(e.kind == "update" for e in unit.after)
    ):
        return
    updated = [e.value for e in unit.events if e.kind == "update"]
    for step in run.of("step"):
        owner = step.event.data.get("scaler")
        if owner is None or owner.kind != "scaler":
            continue
        if unit.loop is None and (step.event.data.get("elsewhere") or not constructed(owner)):
            continue  # updated by another method, after several such calls, perhaps
        if all(other is not owner and constructed(other) and constructed(owner) for other in updated):
            yield Hit(step)


def healthy(text: str) -> bool | None:
    """What a check for finite numbers says where nothing is wrong; None where its words do not tell."""
    if re.search(r"(?<!non)(?<!non_)(?<!not_)(?<!in)finite", text):
        return True
    return False if re.search(r"isnan|isinf|overflow|found_inf", text) else None


def constructed(value: Value | None) -> bool:
    """A scaler that is made in the text, and is no other one."""
    return value is not None and value.data.get("call") is not None and "choice" not in value.data


@rule("GL206")
def live_lock(run: Run) -> Iterator[Hit]:
    finite = {a.key: a.text for a in run.unit.atoms if a.kind == "finite"}
    updates = {id(e) for e in run.unit.events if e.kind == "update"}
    backwards = [s for s in run.of("backward") if scaled(s)]
    for update in run.of("update"):
        backward = next((b for b in reversed(backwards) if b.k == update.k), None)
        if backward is None or len(updates) > 1:
            continue
        guard = [g for g in update.guards - backward.guards if g[0] in finite and healthy(finite[g[0]]) in (None, g[1])]
        if guard and not uncertain(run.unit, "scaler", "self"):
            jump = skipping(run, guard[0][0])
            if not isinstance(jump, ast.Raise):
                yield Hit(update, (backward,), jump)


def skipping(run: Run, key: str) -> ast.AST | None:
    """The `continue` (or `return`) that the check leads to."""
    from gradlab.audit.trace.conditions import atoms
    from gradlab.audit.trace.events import If, Jump, walk

    for item in walk(run.unit.body):
        if isinstance(item, If) and any(a.key == key for a in atoms(item.test)):
            for part in walk([*item.then, *item.other]):
                if isinstance(part, Jump):
                    return part.node
    return None


@rule("GL213")
def update_each(run: Run) -> Iterator[Hit]:
    for update in run.of("update"):
        if run.partial(update):
            yield Hit(update)
