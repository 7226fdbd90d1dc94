"""Windows of micro-batches: their loss, their zeros, their remainder."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from gradlab.audit.conditions import atoms
from gradlab.audit.replay import Step
from gradlab.audit.rules import Hit, concerns, partly, rule, uncertain
from gradlab.audit.trace import Run, Unit
from gradlab.audit.tree import If, Loop, events, walk
from gradlab.audit.values import Value
from gradlab.audit.walking import walk as walk_text

UNKNOWN = ("opaque", "scaled_by", "perhaps")
"""What makes it unknown whether a loss was divided."""


ADAPTING = {"innerloop_ctx", "adapt", "functional_call", "update_params"}
"""What makes a learner of its own in each turn of a loop."""


def divided(value: Value | None, through: Value | None, unit: Unit) -> bool | None:
    """Whether a loss was divided, by anything; None where that cannot be known."""
    if value is None or value.kind != "tensor" or {*UNKNOWN} & {k for k, v in value.data.items() if v}:
        return None
    parts = value.data.get("parts", [value])
    if any(p.data.get("opaque") or p.data.get("reduction", "mean") != "mean" for p in [*parts, value]):
        return None
    if not value.data.get("source"):
        return None
    factors = value.data.get("factors", [])
    if len(parts) > 1:  # weights of parts are no division of the whole
        factors = [f for f in factors if f[0] == "/" or not weight(f, parts)]
    if through is not None and through.kind == "accelerator":
        return None
    return bool(factors)


def weight(factor: tuple, parts: list[Value]) -> bool:
    return not all(factor in p.data.get("factors", []) for p in parts)


def micro(loop: Loop | None) -> bool:
    """Whether a loop counts micro-batches, or goes over parts of a batch: over other things a sum may be meant."""
    if loop is None or not isinstance(loop.node, ast.For):
        return False
    if ADAPTING & {getattr(n, "attr", "") for n in walk_text(loop.node)}:  # tasks of a meta-learner
        return False
    text = ast.unparse(loop.node.iter)
    counted = loop.over is not None and loop.over.kind == "counted" and not re.search(r"len\(|size|shape", text)
    return counted or bool(re.search(r"chunk|split|micro|accum", text))


@rule("GL301", windows=True)
def unscaled(run: Run) -> Iterator[Hit]:
    unit = run.unit
    if unit.compensated or any(s.kind == "scale" for s in run.steps) or uncertain(unit, "self", "tensor"):
        return
    for backward in run.of("backward"):
        if not unit.boundary and not micro(unit.in_window.get(id(backward.event))):
            continue
        if backward.event.data.get("perhaps"):
            continue
        if divided(backward.event.value, backward.event.data.get("through"), unit) is False:
            yield Hit(backward)


@rule("GL302")
def divided_twice(run: Run) -> Iterator[Hit]:
    for backward in run.of("backward"):
        value = backward.event.value
        if value is None or value.kind != "tensor":
            continue
        divisors = [(text, v) for sign, text, v in value.data.get("factors", []) if sign == "/"]
        texts = [text for text, _ in divisors]
        through = backward.event.data.get("through")
        twice = any(texts.count(text) > 1 for text in texts) and run.accumulating and not value.data.get("parts")
        if (
            through is not None
            and through.kind == "accelerator"
            and (region := backward.inside("accumulate")) is not None
        ):
            steps = through.data.get("steps")
            twice = any(
                (steps is not None and v is steps) or "gradient_accumulation_steps" in text for text, v in divisors
            )
            twice = twice or (any(
                steps is not None and steps.kind == v.kind == "number" and steps.data["value"] == v.data["value"]
                for _, v in divisors
            ) and region is not None)  # fmt: skip
        if twice:
            yield Hit(backward)


@rule("GL303", windows=True)
def by_hand(run: Run) -> Iterator[Hit]:
    unit = run.unit
    if any(e.kind == "reduce" for e in unit.events):
        return
    for scale in run.of("scale"):
        if scale.event.data["op"] == "div_" and run.partial(scale):
            yield Hit(scale)


@rule("GL304", windows=True)
def clip_each(run: Run) -> Iterator[Hit]:
    for clip in run.of("clip"):
        if run.partial(clip) and any(s.kind == "backward" and s.k == clip.k for s in run.before(clip)):
            yield Hit(clip)


@rule("GL305")
def zero_missing(run: Run) -> Iterator[Hit]:
    unit = run.unit
    if (unit.loop is None and not unit.alone) or uncertain(
        unit, "optimizer", "model", "ddp", "self", "params", "scaler", "accelerator", "groups"
    ):
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


@rule("GL306", windows=True)
def zero_in_window(run: Run) -> Iterator[Hit]:
    unit = run.unit
    for optimizer in unit.optimizers():
        if unit.inner and not unit.boundary:
            for zero in run.of("zero"):
                if run.partial(zero) and concerns(unit, zero, optimizer):
                    yield Hit(zero)
            continue
        for zero in run.of("zero"):
            if not concerns(unit, zero, optimizer) or partly(unit, zero):
                continue
            pending: Step | None = None
            for step in run.steps[: run.steps.index(zero)]:
                if step.kind == "backward":
                    pending = step
                elif step.kind in ("step", "zero") and concerns(unit, step, optimizer):
                    pending = None
            ahead = next((s for s in run.steps[run.steps.index(zero) :] if s.kind in ("backward", "step")), None)
            if pending is not None and discarding(run, zero, pending):
                continue
            if pending is not None and ahead is not None and ahead.kind == "backward":
                if pending.k < zero.k or (pending.k == zero.k and not run.ends(zero.k)):
                    yield Hit(zero, (pending,))


def discarding(run: Run, zero: Step, backward: Step) -> bool:
    """Whether gradients are thrown away because of what this batch showed: a loss that is not finite, say."""
    known = {a.key for a in run.unit.atoms if a in run.unit.boundary or run.unit.timed(a)}
    return any(key not in known for key, _ in run.unit.varying(zero) - run.unit.varying(backward))


def stepping(unit: Unit) -> tuple[If, bool] | None:
    """The `if` whose body takes the step of a window, and whether it also knows the last batch of an epoch."""
    for item in walk(unit.body):
        if isinstance(item, If) and any(e.kind == "step" for e in events([*item.then, *item.other])):
            known = atoms(item.test)
            if any(a in unit.boundary for a in known):
                return item, any(a.kind == "last" or a.kind == "flag" for a in known)
    return None


def periodic(unit: Unit) -> bool:
    return bool(unit.boundary) and all(a.kind == "period" for a in unit.boundary)


@rule("GL307", on="unit")
def remainder_left(unit: Unit) -> Iterator[tuple[str, ast.AST]]:
    found = stepping(unit)
    if not periodic(unit) or found is None or found[1] or any(e.kind == "step" for e in unit.after):
        return
    if unit.loop is not None and isinstance(unit.loop.node, ast.For) and not uncertain(unit, "self", "optimizer"):
        if unit.loop.over is not None and unit.loop.over.kind == "enumerated":
            step = next(e for e in events([found[0]]) if e.kind == "step")
            yield step.path, step.node


@rule("GL308", on="unit")
def remainder_underscaled(unit: Unit) -> Iterator[tuple[str, ast.AST]]:
    found = stepping(unit)
    if not periodic(unit) or found is None:
        return
    backward = next((e for e in unit.events if e.kind == "backward"), None)
    if backward is None or backward.value is None or unit.loop is None:
        return
    divisors = [text for sign, text, _ in backward.value.data.get("factors", []) if sign == "/"]
    if unit.period not in divisors and not any(text == unit.period for text in divisors):
        return
    late = next((e for e in unit.after if e.kind == "step" and same_optimizer(e, unit)), None)
    if late is not None:
        yield late.path, late.node
    elif found[1]:
        yield backward.path, backward.node


def same_optimizer(event, unit: Unit) -> bool:
    return any(event.value is o for o in unit.optimizers())
