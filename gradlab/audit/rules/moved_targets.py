"""The target of a prediction, which a loss should leave as it is, and moves."""

from __future__ import annotations

from collections.abc import Iterator

from gradlab.audit.rules.reach import overlap
from gradlab.audit.rules.registry import Hit, scenario_rule
from gradlab.audit.rules.unstable_losses import computed
from gradlab.audit.rules.useless_terms import moved_by
from gradlab.audit.trace.provenance import sources
from gradlab.audit.trace.replay import Occurrence
from gradlab.audit.trace.scenarios import Scenario
from gradlab.audit.trace.values import Value


@scenario_rule("GL718")
def target_not_detached(scenario: Scenario) -> Iterator[Hit]:
    """Where the gradient that a target receives reaches weights that are stepped with it."""
    for hit in computed(scenario, "target"):
        value, backward = hit.step.event.value, hit.others[0]
        models = moved_by(scenario, backward) or sharing(scenario, backward)
        passes = sources(value) if value is not None else []
        if any(e.value is not None and overlap(e.value, model) for e in passes for model in models):
            yield hit


def sharing(scenario: Scenario, backward: Occurrence) -> list[Value]:
    """The only network of a loss, if its gradients are zeroed or clipped for a step: of a copy that shares them.

    Another process may take that step, with gradients that are clipped here.
    """
    loss = backward.event.value
    roots = {e.value.root() for e in sources(loss) if e.value is not None} if loss is not None else set()
    around = [one for one in scenario.steps if one.k == backward.k and one.kind in ("zero", "clip", "step", "backward")]
    before, after = around[: around.index(backward)], around[around.index(backward) + 1 :]
    treated = [s.event.value for s in before if s.kind == "zero"] + [s.event.value for s in after if s.kind == "clip"]
    own = roots <= {value.root() for value in treated if value is not None}
    stepped = [one.kind for one in after if one.kind != "clip"][:1] == ["step"]
    stepped |= not scenario.of("step") and any(one.kind == "clip" for one in after)
    return [*roots] if len(roots) == 1 and own and stepped else []
