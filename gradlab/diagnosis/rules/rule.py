"""What a rule is: a class with its code, thresholds and documentation. To add one: a file here, or in a plugin."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, ClassVar, TypeVar

from gradlab.base.option import OPTIONS, Invalid, option, require
from gradlab.diagnosis.finding import Finding
from gradlab.diagnosis.finished_run import FinishedRun
from gradlab.diagnosis.history import History

T = TypeVar("T", bound="type[Rule]")


def rule(code: str, position: int) -> Callable[[T], T]:
    """Register a rule: its finding's code, and its position in the order of causes (gradlab's own count by tens).

    Raises `Invalid` for a position that another rule has: the verdict would depend on the order of imports.
    """

    def register(cls: T) -> T:
        for (group, name), other in OPTIONS.items():
            if group == "rule" and name != code and getattr(other, "position", None) == position:
                raise Invalid("rule", code, f"must have a position of its own: {position} is that of {name}")
        cls.code, cls.position = code, position
        option("rule", code)(cls)
        return cls

    return register


@dataclass
class Rule:
    """Base of the rules: fields are thresholds, `observe` follows the run, `find` returns what was found at its end.

    The docstring of a rule says what is measured; `gradlab.diagnosis.reference` makes the documentation of it.
    """

    code: ClassVar[str] = ""
    """The finding's identifier, which may be a run's verdict."""
    position: ClassVar[int] = 0
    """In the order of causes: the verdict is the finding with the lowest."""
    causes: ClassVar[tuple[str, ...]] = ()
    """Likely causes, the likeliest first."""
    fixes: ClassVar[tuple[str, ...]] = ()
    """What to do, the likeliest to help first."""
    fallback: ClassVar[bool] = False
    """Whether it is dropped where another rule found something critical."""
    aside: ClassVar[bool] = False
    """Whether its finding is information, and never the verdict."""
    decides: ClassVar[bool] = False
    """Whether its finding is the verdict, if there is nothing worse, though it is information."""
    follows: ClassVar[tuple[str, ...]] = ()
    """Findings that say as much as its own, where that is information."""
    loses: ClassVar[str] = ""
    """The class on maps of a run with a critical finding of it that leaves no usable model: diverged, exploded or
    collapsed; empty where the run is stable nevertheless, like one that does not learn."""
    needs: ClassVar[tuple[str, ...]] = ()
    """What it requires: long, layers, steps or inspection (see `unable`)."""

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            require(value > 0, f"{self.code}.{f.name}", value, "> 0")

    def begin(self) -> None:
        """Forget what was observed."""

    def observe(self, line: dict[str, Any], layers: dict[str, list[Any]] | None, history: History) -> None:
        """Read the line of an update, after `history` has; layers: what was recorded of them in that update."""

    def find(self, run: FinishedRun) -> Finding | None:
        """The finding, if there is one."""
        raise NotImplementedError

    def suspects(self, run: FinishedRun) -> list[int]:
        """Attempts whose samples are to be measured one by one, before `find`."""
        return []

    def yields(self, run: FinishedRun) -> bool:
        """Whether its finding is dropped where another rule found something critical."""
        return self.fallback

    def unable(self, run: FinishedRun) -> str | None:
        """Why the rule cannot be applied to this run; None if it can."""
        h = run.history
        unmoved = "how far applied updates move the weights was not recorded" if h.applied else "no update was applied"
        missing = {
            "long": None if run.long else run.why_not_long,
            "layers": None if h.layer_records else "no norms of layers were recorded (monitor=none)",
            "steps": None if h.update_ratios.count else unmoved,
            "inspection": None if run.inspection else "the model was not inspected when the run ended",
        }
        return next((missing[need] for need in self.needs if missing[need]), None)

    def found(self, severity: str, sentence: str, began: int | None = None, **evidence: Any) -> Finding:
        lost = self.loses if severity == "critical" else ""
        return Finding(self.code, severity, sentence, began, evidence, list(self.causes), lost)
