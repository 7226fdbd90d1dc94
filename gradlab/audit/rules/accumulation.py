"""Windows of micro-batches: their loss, their zeros, their remainder."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gradlab.audit.conditions import atoms
from gradlab.audit.rules import Hit, concerns, rule, uncertain
from gradlab.audit.trace import Run, Step, Unit
from gradlab.audit.tree import If, events, walk
from gradlab.audit.values import Value

RIGHT = """
for i, (x, y) in enumerate(loader):
    (criterion(model(x), y) / n).backward()
    if (i + 1) % n == 0:
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        optimizer.step()
        optimizer.zero_grad()
"""


UNKNOWN = ("opaque", "scaled_by", "perhaps")
"""What makes it unknown whether a loss was divided."""


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


@rule(
    "GL301",
    "accumulation-unscaled",
    "error",
    "the losses of a window are added up undivided, so the gradient is n times too large: divide each loss by n",
    "Measured: under SGD a learning rate n times too high, lost at update 14; Adam cancels a constant factor "
    "but for eps, clipping "
    "and weight decay (README, pitfall unscaled_accumulation).",
    RIGHT,
)
def unscaled(run: Run) -> Iterator[Hit]:
    unit = run.unit
    if not unit.accumulating or any(s.kind == "scale" for s in run.steps) or uncertain(unit, "self", "tensor"):
        return
    if unit.compensated:
        return
    for backward in run.of("backward"):
        if not unit.boundary and id(backward.event) not in unit.windows:
            continue
        if backward.event.data.get("perhaps"):
            continue
        if divided(backward.event.value, backward.event.data.get("through"), unit) is False:
            yield Hit(backward)


@rule(
    "GL302",
    "loss-divided-twice",
    "error",
    "the loss is divided by the length of the window twice, so the gradient is n times too small: divide once",
    "A learning rate n times too low under SGD. Accelerate's backward() divides by gradient_accumulation_steps itself.",
    "(loss / n).backward()  # once\naccelerator.backward(loss)  # Accelerate divides by itself",
)
def divided_twice(run: Run) -> Iterator[Hit]:
    unit = run.unit
    for backward in run.of("backward"):
        value = backward.event.value
        if value is None or value.kind != "tensor":
            continue
        divisors = [(text, v) for sign, text, v in value.data.get("factors", []) if sign == "/"]
        texts = [text for text, _ in divisors]
        through = backward.event.data.get("through")
        twice = any(texts.count(text) > 1 for text in texts) and unit.accumulating and not value.data.get("parts")
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


@rule(
    "GL303",
    "gradients-scaled-by-hand",
    "warning",
    "gradients are divided by hand for each micro-batch, earlier ones again each time: divide the loss instead",
    "Measured: micro-batch i of n weighs n^-(n - i) of what it should; the gradient is 0.38 of the right one, "
    "its cosine 0.89 "
    "(README, pitfall gradients_scaled_by_hand).",
    RIGHT,
)
def by_hand(run: Run) -> Iterator[Hit]:
    unit = run.unit
    if not unit.accumulating or any(e.kind == "reduce" for e in unit.events):
        return
    for scale in run.of("scale"):
        if scale.event.data["op"] == "div_" and (not run.ends(scale.k) if unit.boundary else unit.each(scale, run)):
            yield Hit(scale)


@rule(
    "GL304",
    "clip-every-micro-batch",
    "error",
    "each micro-batch of a window is clipped: clip once, when all have been added up",
    "Measured: clipping a sum that is not complete weighs micro-batches unequally; the update is 0.03 of "
    "a move away, and more where clipping is tight (README, pitfall clip_each_micro_batch).",
    RIGHT,
)
def clip_each(run: Run) -> Iterator[Hit]:
    unit = run.unit
    if not unit.accumulating:
        return
    for clip in run.of("clip"):
        if unit.boundary:
            earlier = [s for s in run.steps[: run.steps.index(clip)] if s.k == clip.k]
            if not run.ends(clip.k) and any(s.kind == "backward" for s in earlier):
                yield Hit(clip)
        elif unit.each(clip, run):
            yield Hit(clip)


@rule(
    "GL305",
    "zero-grad-missing",
    "error",
    "gradients are never set to zero here, so each update adds those of all before: call zero_grad() after the step",
    "Measured: like a momentum of 1; the loss ends at 6.88 instead of 3.10 (README, pitfall missing_zero_grad).",
    RIGHT,
)
def zero_missing(run: Run) -> Iterator[Hit]:
    unit = run.unit
    if unit.loop is None or uncertain(
        unit, "optimizer", "model", "ddp", "self", "params", "scaler", "accelerator", "groups"
    ):
        return
    for optimizer in unit.optimizers():
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


@rule(
    "GL306",
    "zero-grad-in-window",
    "error",
    "gradients are set to zero for each micro-batch, only the last reaches the step: call zero_grad() after the step",
    "Measured: a third of the gradient, with a cosine of 0.81 (README, pitfall zero_grad_in_window).",
    RIGHT,
)
def zero_in_window(run: Run) -> Iterator[Hit]:
    unit = run.unit
    if not unit.accumulating:
        return
    for optimizer in unit.optimizers():
        if unit.inner and not unit.boundary:
            for zero in run.of("zero"):
                if unit.each(zero, run) and concerns(unit, zero, optimizer):
                    yield Hit(zero)
            continue
        for zero in run.of("zero"):
            if not concerns(unit, zero, optimizer):
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


@rule(
    "GL307",
    "remainder-left",
    "advice",
    "the last, shorter window of an epoch takes no step, its gradients are dropped or leak: step at the last batch too",
    "With 10 batches and n = 4 the last two are lost, or make the next update a sum over six (README, "
    "pitfall remainder_underscaled).",
    "if (i + 1) % n == 0 or i + 1 == len(loader):\n    optimizer.step()\n    optimizer.zero_grad()",
    on="unit",
)
def remainder_left(unit: Unit) -> Iterator[tuple[str, ast.AST]]:
    found = stepping(unit)
    if not periodic(unit) or found is None or found[1] or any(e.kind == "step" for e in unit.after):
        return
    if unit.loop is not None and isinstance(unit.loop.node, ast.For) and not uncertain(unit, "self", "optimizer"):
        if unit.loop.over is not None and unit.loop.over.kind == "enumerated":
            step = next(e for e in events([found[0]]) if e.kind == "step")
            yield step.path, step.node


@rule(
    "GL308",
    "remainder-underscaled",
    "advice",
    "the last window of an epoch is shorter, but its losses are divided by the full n: divide by its own length",
    "Measured: its gradient is a fraction of the right one, 0.25 where one micro-batch of four remains (README, "
    "pitfall "
    "remainder_underscaled).",
    "window = min(n, len(loader) - i // n * n)\n(loss / window).backward()",
    on="unit",
)
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
