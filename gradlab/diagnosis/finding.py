"""What a diagnosis consists of."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

SEVERITIES = ("critical", "warning", "info")
"""critical: the run is unhealthy. warning: a problem, but it trains. info: worth knowing, not a problem."""


@dataclass
class Finding:
    """What one rule found."""

    code: str
    severity: str
    sentence: str
    began: int | None = None
    """The attempt, counted from 1, at which it began; None where that is not known."""
    evidence: dict[str, Any] = field(default_factory=dict)
    causes: list[str] = field(default_factory=list)
    """Likely causes, the likeliest first."""
    lost: str = ""
    """The class of a run that it makes unstable (`gradlab.runs.outcome_class`), where its code does not decide it."""


@dataclass
class Diagnosis:
    """The verdict with its sentence and evidence, and all findings."""

    verdict: str
    sentence: str
    evidence: dict[str, Any] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    checked: list[str] = field(default_factory=list)
    unchecked: dict[str, str] = field(default_factory=dict)
    """Rules that could not be applied, and why."""
    learns: bool = False
    """Whether it is healthy, the loss has fallen, and is below that of the best constant answer."""

    @property
    def unhealthy(self) -> bool:
        return any(f.severity == "critical" for f in self.findings)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)
