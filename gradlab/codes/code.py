"""One thing that can be wrong with a training loop."""

from __future__ import annotations

from dataclasses import dataclass

SEVERITIES = ("advice", "warning", "error")
"""advice: right, and could be better. warning: probably wrong. error: a wrong result."""


@dataclass(frozen=True)
class Code:
    """`why` names the measured effect; `mend` says what to do, `example` is what to write instead."""

    code: str
    name: str
    severity: str
    message: str
    why: str
    mend: str
    example: str
    default: bool = True
    """Whether the audit says it without being asked."""
