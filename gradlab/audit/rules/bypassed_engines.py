"""Backward passes past the engine, accelerator or Fabric that holds the model; engines that never step."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gradlab.audit.rules.registry import Hit, scenario_rule
from gradlab.audit.trace.replay import Occurrence
from gradlab.audit.trace.scenarios import Scenario
from gradlab.audit.trace.training_loop import differentiable


@scenario_rule("GL509")
def engine_bypassed(scenario: Scenario) -> Iterator[Hit]:
    backwards = scenario.of("backward")
    for step in scenario.of("step"):
        value = step.event.value
        if value is None:
            continue
        before = [b for b in backwards if b.k == step.k and b.event.through is None and plain(b)]
        through = any(b.event.through is not None for b in backwards if b.k == step.k)
        flagged = any(e.kind == "backward" and e.through is not None for e in scenario.loop.events)
        if before and ((value.kind == "engine" and not flagged and not through) or prepared(before[-1])):
            yield Hit(before[-1], (step,))


def plain(backward: Occurrence) -> bool:
    """Whether it is `loss.backward()`, and not the method of an engine that receives the loss."""
    return isinstance(backward.event.node, ast.Call) and not backward.event.node.args


def prepared(backward: Occurrence) -> bool:
    """Whether a loss comes from a network that an accelerator or Fabric has prepared, which is surely one."""
    value = backward.event.value
    if value is None or value.kind != "tensor" or value.scaled is not None or value.apex:
        return False
    owners = [
        e.value.prepared for e in (value.forward, *value.chain) if e is not None and e.value and differentiable(e)
    ]
    return any(o is not None and (o.call is not None or (o.annotated and not o.given)) for o in owners)
