"""Clipping and zeroing at the wrong place between backward and step."""

from __future__ import annotations

from collections.abc import Iterator

from gradlab.audit.rules import Hit, rule, uncertain
from gradlab.audit.rules.ownership import concerns, partly
from gradlab.audit.trace.replay import Step
from gradlab.audit.trace.scenarios import Run


def neighbours(run: Run, step: Step, optimizer) -> tuple[list[Step], list[Step]]:
    """Backward passes and this optimizer's other steps before and after, in the same iteration."""
    at = run.steps.index(step)
    before, after = (
        [
            s
            for s in steps
            if s.kind in ("backward", "step")
            and s.k == step.k
            and (s.kind == "backward" or concerns(run.unit, s, optimizer))
        ]
        for steps in (run.steps[:at], run.steps[at + 1 :])
    )
    return before, after


def following(run: Run, step: Step, optimizer, by: int) -> list[Step]:
    """Backward passes and this optimizer's steps of the next turn or the last, where a step comes before a backward."""
    return [
        s for s in run.steps
        if s.k == step.k + by and (s.kind == "backward" or (s.kind == "step" and concerns(run.unit, s, optimizer)))
    ]  # fmt: skip


@rule("GL101")
def clip_after_step(run: Run) -> Iterator[Hit]:
    for optimizer in run.unit.optimizers():
        for clip in run.of("clip"):
            if not concerns(run.unit, clip, optimizer):
                continue
            before, after = neighbours(run, clip, optimizer)
            if before and before[-1].kind == "step" and not any(s.kind == "step" for s in after):
                if any(s.kind == "backward" for s in before):
                    yield Hit(clip, (before[-1],))


@rule("GL102")
def clip_before_backward(run: Run) -> Iterator[Hit]:
    for optimizer in run.unit.optimizers():
        for clip in run.of("clip"):
            if not concerns(run.unit, clip, optimizer):
                continue
            before, after = neighbours(run, clip, optimizer)
            empty = cleared(run, clip, optimizer)
            if (before and not empty) or not after or after[0].kind != "backward" or uncertain(run.unit, "tensor"):
                continue
            if run.unit.loop is None and len(run.unit.optimizers()) > 1 and not empty:
                continue
            if not any(concerns(run.unit, s, optimizer) for s in until_step(run, clip, optimizer) if s.kind == "clip"):
                yield Hit(clip, (after[0],))


def until_step(run: Run, clip: Step, optimizer) -> Iterator[Step]:
    """What follows in the same iteration, up to this optimizer's step."""
    for step in run.steps[run.steps.index(clip) + 1 :]:
        if step.k != clip.k or (step.kind == "step" and concerns(run.unit, step, optimizer)):
            return
        yield step


def cleared(run: Run, clip: Step, optimizer) -> bool:
    """Whether there are no gradients to clip: since they were set to zero there was no backward pass."""
    for step in reversed(run.before(clip)):
        if step.k != clip.k or step.kind == "backward":
            return False
        if step.kind == "zero" and concerns(run.unit, step, optimizer):
            return not partly(run.unit, step)
    return False


def given_by_hand(run: Run, zero: Step, step: Step) -> bool:
    """Whether gradients are set, or may be by a call that cannot be followed, between the two."""
    i, j = run.steps.index(zero), run.steps.index(step)
    steps = run.steps[i:j] if i < j else [*run.steps[i:], *run.steps[:j]]
    calls = (s.event.data["receives"] for s in steps if s.kind == "opaque")
    return any(s.kind == "given" for s in steps) or any(receives & {"params", "gradients"} for receives in calls)


def rejected(run: Run, zero: Step) -> bool:
    """Whether gradients are set to zero where something says that a batch was no good."""
    flags = {a.key for a in run.unit.atoms if a.kind == "flag" and a.birth > run.unit.birth}
    return any(key in guard for guard, _ in zero.guards for key in flags if "is not None" not in key)


@rule("GL103")
def zero_before_step(run: Run) -> Iterator[Hit]:
    for optimizer in run.unit.optimizers():
        for zero in run.of("zero"):
            if not concerns(run.unit, zero, optimizer) or partly(run.unit, zero):
                continue
            before, after = neighbours(run, zero, optimizer)
            if not after:
                after = following(run, zero, optimizer, 1)
            if not before:
                before = following(run, zero, optimizer, -1)
            if before and before[-1].kind == "backward" and after and after[0].kind == "step":
                between = run.steps[run.steps.index(before[-1]) : run.steps.index(zero)]
                if given_by_hand(run, zero, after[0]) or rejected(run, zero):
                    continue
                if optimizer.data.get("class") is not None and any(s.kind == "step" for s in between):
                    continue  # one of the project's own after another's: a proximal step, which needs no gradients
                if zero.event.node is not after[0].event.node and not uncertain(run.unit, "tensor"):
                    yield Hit(zero, (before[-1], after[0]))
