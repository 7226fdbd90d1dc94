"""Steps of weights that no backward pass has given a gradient: before it, of frozen weights, of other weights."""

from __future__ import annotations

from collections.abc import Iterator

from gradlab.audit.rules.ownership import concerns, partial_zero
from gradlab.audit.rules.reach import overlap, separate, stood_in_for
from gradlab.audit.rules.registry import Hit, scenario_rule
from gradlab.audit.rules.reporting import uncertain
from gradlab.audit.trace.provenance import is_traced, sources
from gradlab.audit.trace.replay import Occurrence
from gradlab.audit.trace.scenarios import Scenario
from gradlab.audit.trace.training_loop import TrainingLoop
from gradlab.audit.trace.values import Value

GIVING = {"backward", "given", "opaque", "taken"}
"""Kinds of events after which gradients may be there."""


@scenario_rule("GL701")
def step_without_gradient(scenario: Scenario) -> Iterator[Hit]:
    for step in scenario.of("step"):
        optimizer = step.event.value
        if optimizer is None or optimizer.kind != "optimizer" or step.event.closure or optimizer.lineage:
            continue
        if (zero := before_backward(scenario, step, optimizer)) is not None:
            yield Hit(step, (zero,))
        if optimizer.trained and not optimizer.some:
            if all(frozen(model, optimizer) for model in optimizer.trained) or unreached(scenario, step, optimizer):
                yield Hit(step)


def before_backward(scenario: Scenario, step: Occurrence, optimizer: Value) -> Occurrence | None:
    """The zeroing after which this step comes, where its backward pass follows it, and no other step uses that."""
    around = [s for s in scenario.steps if s.k == step.k and s.repeat == step.repeat]
    at = around.index(step)
    later = [s.kind for s in around[at + 1 :] if s.kind in ("backward", "step", "opaque")]
    if later[:1] != ["backward"] or later[1:2] in (["step"], ["opaque"]):
        return None
    for one in reversed(around[:at]):
        if one.kind in GIVING or (one.kind == "step" and concerns(scenario.loop, one, optimizer)):
            return None
        if one.kind == "zero" and concerns(scenario.loop, one, optimizer):
            return None if partial_zero(scenario, one) or one.event.node is step.event.node else one
    return None


def unreached(scenario: Scenario, step: Occurrence, optimizer: Value) -> bool:
    """Whether every loss since the last zeroing comes from networks that are known, and are none of the optimizer's."""
    loop = scenario.loop
    if not single(loop, optimizer.trained) or uncertain(
        loop, "model", "ddp", "params", "optimizer", "gradients", "self"
    ):
        return False
    if any(event.kind in ("given", "reduce") for event in loop.events):
        return False
    losses = [s.event.value for s in since_zeroing(scenario, step, optimizer)]
    for loss in losses:
        if loss is None or loss.kind != "tensor" or not sources(loss):
            return False
        if not is_traced(loss) and not all(stood_in_for(loop, one) for one in optimizer.trained):
            return False
        models = tuple(event.value for event in sources(loss) if event.value is not None)
        if not single(loop, models) or any(overlap(one, two) for one in models for two in optimizer.trained):
            return False
    return bool(losses)


def since_zeroing(scenario: Scenario, step: Occurrence, optimizer: Value) -> list[Occurrence]:
    """The backward passes since an optimizer's gradients were set to zero; all, where they were not before."""
    found: list[Occurrence] = []
    for one in reversed(scenario.before(step)):
        if one.kind == "zero" and concerns(scenario.loop, one, optimizer) and not partial_zero(scenario, one):
            return found
        if one.kind == "backward":
            found.append(one)
    return scenario.of("backward")


def single(loop: TrainingLoop, models: tuple[Value, ...]) -> bool:
    """Whether these models are separate, and none is a part of several."""
    return separate(loop, models) and not any(model.root().shared for model in models)


def frozen(model: Value, optimizer: Value) -> bool:
    """Whether weights were frozen under no condition before an optimizer received them, and nothing unfreezes them."""
    return 0 < model.frozen < optimizer.birth and not model.thawed
