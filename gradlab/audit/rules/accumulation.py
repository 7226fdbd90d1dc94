"""Windows of micro-batches: their loss, their scale, their clips."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from gradlab.audit.knowledge.framework_methods import single
from gradlab.audit.rules import Hit, rule, uncertain
from gradlab.audit.source.syntax import walk as walk_text
from gradlab.audit.trace.events import Loop
from gradlab.audit.trace.replay import Step
from gradlab.audit.trace.scenarios import Run
from gradlab.audit.trace.training_loop import Unit
from gradlab.audit.trace.values import Value

UNKNOWN = ("perhaps",)
"""What makes it unknown whether a loss was divided."""
WEIGHT = re.compile(r"weight|lambda|coeff?(_|#|$)|alpha|beta|gamma", re.I)
"""What a term of a loss is multiplied with, which is no division."""


ADAPTING = {"innerloop_ctx", "adapt", "functional_call", "update_params"}
"""What makes a learner of its own in each turn of a loop."""


def divided(value: Value | None, through: Value | None, unit: Unit, since: int) -> bool | None:
    """Whether a loss was divided, by anything but the numbers of this micro-batch; None where that cannot be known."""
    if value is None or value.kind != "tensor" or any(value.data.get(key) for key in UNKNOWN):
        return None
    parts = value.data.get("parts", [value])
    means = all(p.data.get("reduction", "mean") == "mean" or averaged(p, since) for p in [*parts, value])
    if any(dark(p) for p in [*parts, value]) or not means:
        return None
    if not value.data.get("source") and not value.data.get("blind"):
        return None
    factors = [f for f in value.data.get("factors", []) if f[0] == "/" or not WEIGHT.search(f[1])]
    masks = [f[2].data["counted"] for f in factors if own(f, since)]
    factors = [f for f in factors if not own(f, since) and all(f[2] is not mask for mask in masks)]
    if len(parts) > 1:  # weights of parts are no division of the whole
        factors = [f for f in factors if f[0] == "/" or not weight(f, parts)]
    if through is not None and through.kind == "accelerator" and not single(through):
        return None
    return bool(factors)


def own(factor: tuple, since: int) -> bool:
    """Whether a factor is the number of what one micro-batch holds: `mask.sum()`."""
    counted = factor[2].data.get("counted")
    return factor[0] == "/" and counted is not None and counted.kind == "unknown" and counted.birth > since


def averaged(value: Value, since: int) -> bool:
    """Whether a sum is divided by the number of its own terms, which makes it a mean."""
    return any(own(factor, since) for factor in value.data.get("factors", []))


def dark(value: Value) -> bool:
    """Whether a loss comes from where it may have been divided."""
    return bool(value.data.get("opaque")) and not value.data.get("blind")


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
    if any(e.kind == "taken" for e in unit.events):
        return  # put aside, and perhaps averaged
    for backward in run.of("backward"):
        loop = unit.in_window.get(id(backward.event))
        if not unit.boundary and not micro(loop):
            continue
        if backward.event.data.get("perhaps"):
            continue
        if backward.event.data.get("through") is not None and backward.inside("accumulate"):
            continue  # Accelerate's own window, which all accelerators share: each divides by its length
        if repeated(backward, loop) or handed_on(loop, unit) or alone(run, backward) or run.unused(backward):
            continue
        since = loop.birth if loop is not None else unit.birth
        if divided(backward.event.value, backward.event.data.get("through"), unit, since) is False:
            yield Hit(backward)


def alone(run: Run, backward: Step) -> bool:
    """Whether a step is made with this one's gradient and no other: SAM's second, after the first was thrown away."""
    at = run.steps.index(backward)
    before = next((s.kind for s in reversed(run.steps[:at]) if s.kind in ("backward", "zero", "step")), "")
    behind = next((s.kind for s in run.steps[at + 1 :] if s.kind in ("backward", "zero", "step")), "")
    return before == "zero" and behind == "step"


def repeated(backward: Step, loop: Loop | None) -> bool:
    """Whether each turn has the same batch, by its targets: attacks on one batch, say, whose sum may be meant."""
    target = backward.event.value.data.get("target") if backward.event.value is not None else None
    return loop is not None and target is not None and target < loop.birth


def handed_on(loop: Loop | None, unit: Unit) -> bool:
    """Whether the window's length goes into a batch: `batch["scale"] = 1 / (count * steps)`."""
    within = loop or unit.loop
    node = within.node if within is not None else None
    over = loop.node.iter if loop is not None and isinstance(loop.node, ast.For) else ast.Pass()
    names = {p.id for p in walk_text(over) if isinstance(p, ast.Name)}
    names |= {name.split(".")[-1] for name in re.findall(r"([A-Za-z_][\w.]*)#", unit.period)}
    for part in walk_text(node) if node is not None else ():
        if isinstance(part, ast.Assign) and isinstance(part.targets[0], ast.Subscript):
            found = {getattr(p, "attr", getattr(p, "id", "")) for p in walk_text(part.value)}
            if names & found and any(isinstance(p, ast.BinOp) for p in walk_text(part.value)):
                return True
    return False


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
