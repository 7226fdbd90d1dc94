"""Graphs that two backward passes go through."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import pairwise

from gradlab.audit.rules.reach import overlap
from gradlab.audit.rules.registry import Hit, scenario_rule
from gradlab.audit.trace.provenance import sources
from gradlab.audit.trace.replay import Occurrence
from gradlab.audit.trace.scenarios import Scenario
from gradlab.audit.trace.values import Event, Value


@scenario_rule("GL719")
def graph_used_again(scenario: Scenario) -> Iterator[Hit]:
    """Two losses come from one forward pass of a network that is trained, and the first frees its graph."""
    trained = [model for optimizer in scenario.loop.optimizers() for model in optimizer.trained]
    if not trained:
        return
    backwards = scenario.of("backward")
    for first, second in pairwise(backwards):
        if (first.k, first.repeat) != (second.k, second.repeat) or not frees(first) or first.event is second.event:
            continue
        both = [e for e in forwards(first) if e in forwards(second)]
        for event in both:
            if through_whole(event, trained) and happened(scenario, event, first, second):
                yield Hit(second, (first,))
                break


def frees(backward: Occurrence) -> bool:
    """Whether it is a plain backward pass, which frees the graph."""
    node, through = backward.event.node, backward.event.through
    return isinstance(node, ast.Call) and through is None and not node.args and not node.keywords


def forwards(backward: Occurrence) -> list[Event]:
    value = backward.event.value
    return sources(value) if value is not None and not value.choice else []


def through_whole(event: Event, trained: list[Value]) -> bool:
    """Whether a forward pass is one of a trained network, whose result is used as a whole."""
    model = event.value
    return model is not None and not event.parted and not model.choice and any(overlap(model, one) for one in trained)


def happened(scenario: Scenario, event: Event, first: Occurrence, second: Occurrence) -> bool:
    """Whether it happened before both backward passes, and not between them again."""
    places = scenario.places
    at = [places[id(s)] for s in scenario.of("forward") if s.event is event and s.k == first.k]
    return bool(at) and max(at) < places[id(first)] and not any(places[id(first)] < i < places[id(second)] for i in at)
