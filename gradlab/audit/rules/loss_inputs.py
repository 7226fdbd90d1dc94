"""Probabilities given to a loss function that takes logits, or their logarithms, and logits where these belong."""

from __future__ import annotations

from collections.abc import Iterator

from gradlab.audit.rules.registry import Hit, scenario_rule
from gradlab.audit.rules.unstable_losses import computed
from gradlab.audit.trace.scenarios import Scenario


@scenario_rule("GL609")
def loss_input(scenario: Scenario) -> Iterator[Hit]:
    yield from computed(scenario, "input")
