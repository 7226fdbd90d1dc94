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
    """Updates over which a loss is averaged. Comparing an end with a beginning takes two of them: a run of fewer is
    `too_short`."""
    learning: float = 0.05
    """Improvement over its first loss, and over the best constant answer, as a fraction, that counts as learnt."""
    plateau: int = 100
    """Updates that ordinary training may need to become better than a constant answer: 20 to 70 were measured."""
    still: float = 1e-6
    """Usual relative change of the weights in an update below which they count as frozen."""

    def __post_init__(self) -> None:
        require(self.window >= 2, "window", self.window, ">= 2")
        require(0 < self.learning < 1, "learning", self.learning, "in (0, 1)")
        require(self.plateau >= 1, "plateau", self.plateau, ">= 1")
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
    text = "Thresholds: those that the rules share, and a field for each rule, by its code."
    return make_dataclass(
        "Thresholds", made, bases=(DiagnosisOption,), namespace={"__module__": __name__, "__doc__": text}
    )


Thresholds = option("diagnosis", "default")(with_rules(rule_classes()))
"""The option itself. The order of its rules is the order of causes: the first that applies is the verdict."""
CODES = tuple(rule.code for rule in Thresholds().rules())
VERDICTS = ("healthy", *(rule.code for rule in Thresholds().rules() if not rule.aside), "interrupted")
"""Every verdict that a run can get."""


def check_verdict(field: str, given: object) -> None:
    """Refuse an expectation that no run can meet."""
    verdicts = given if isinstance(given, list) and given else [given]
    if given not in (None, "any") and not set(map(str, verdicts)) <= set(VERDICTS):
        raise Invalid(field, given, f"must be null, any, or one or a list of {', '.join(VERDICTS)}")
