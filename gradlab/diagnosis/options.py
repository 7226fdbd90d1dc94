"""`diagnosis=`: the thresholds that the rules share, and those of every rule, in the order of causes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, make_dataclass
from typing import Any

from gradlab.base import components
from gradlab.base.option import OPTIONS, Invalid, option, require
from gradlab.diagnosis.rules.rule import Rule


@dataclass
class DiagnosisOption:
    """Thresholds of the diagnosis. Besides these fields there is one for each rule, by its code: see `Thresholds`."""

    window: int = 20
    """Updates over which a loss is averaged; the losses of a run of fewer than two windows are not judged."""
    learning: float = 0.05
    """Smallest relative improvement of the loss that counts as learning."""
    still: float = 1e-6
    """Usual relative change of the weights in an update below which they count as frozen."""

    def __post_init__(self) -> None:
        require(self.window >= 2, "window", self.window, ">= 2")
        require(self.learning > 0, "learning", self.learning, "> 0")
        require(self.still > 0, "still", self.still, "> 0")

    def rules(self) -> Iterator[Rule]:
        """Every rule, in the order of causes."""
        for f in fields(self):
            if isinstance(rule := getattr(self, f.name), Rule):
                yield rule


def rule_classes() -> list[type[Rule]]:
    """The rules of gradlab and of plugins, in the order of causes."""
    components.load("rule")
    return sorted((cls for (group, _), cls in OPTIONS.items() if group == "rule"), key=lambda cls: cls.position)


def with_rules(rules: list[type[Rule]]) -> type[DiagnosisOption]:
    """`DiagnosisOption` with a field for each rule."""
    made: list[tuple[str, type, Any]] = [(cls.code, cls, field(default_factory=cls)) for cls in rules]
    return make_dataclass("Thresholds", made, bases=(DiagnosisOption,), namespace={"__module__": __name__})


Thresholds = option("diagnosis", "default")(with_rules(rule_classes()))
"""The option itself. The order of its rules is the order of causes: the first that applies is the verdict."""
CODES = tuple(rule.code for rule in Thresholds().rules())
VERDICTS = ("healthy", *(rule.code for rule in Thresholds().rules() if not rule.aside), "interrupted")
"""Every verdict that a run can get."""


def check_verdict(field: str, given: str | None) -> None:
    """Refuse an expectation that no run can meet."""
    if given not in (None, "any", *VERDICTS):
        raise Invalid(field, given, f"must be null, any or one of {', '.join(VERDICTS)}")
