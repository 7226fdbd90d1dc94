"""What a loss should leave as it is, and moves: the target of a prediction, and the advantage of an action."""

from __future__ import annotations

from collections.abc import Iterator

from gradlab.audit.rules.reach import overlap
from gradlab.audit.rules.registry import Hit, scenario_rule
from gradlab.audit.rules.unstable_losses import computed
from gradlab.audit.rules.useless_terms import moved_by
from gradlab.audit.trace.provenance import sources
from gradlab.audit.trace.scenarios import Scenario


@scenario_rule("GL718")
def target_not_detached(scenario: Scenario) -> Iterator[Hit]:
    yield from moving(scenario, "target")


@scenario_rule("GL711")
def advantage_not_detached(scenario: Scenario) -> Iterator[Hit]:
    yield from moving(scenario, "advantage")


def moving(scenario: Scenario, what: str) -> Iterator[Hit]:
    """Where the gradient that something receives reaches weights that are stepped with it."""
    for hit in computed(scenario, what):
        value, backward = hit.step.event.value, hit.others[0]
        models = moved_by(scenario, backward)
        passes = sources(value) if value is not None else []
        if any(e.value is not None and overlap(e.value, model) for e in passes for model in models):
            yield hit
