"""Whether a run that ended healthy is a cure of the one that failed: it must go on learning to its end."""

from __future__ import annotations

import math
from typing import Any

from gradlab.base.json_lines import number

RISES = 0.1
"""Part of the fall of the losses, and of the evaluations, that a cure may lose again."""
TIMES = 0.5
"""The same, of their best: noise about a level is a part of it."""


def why_not(diagnosis: dict[str, Any], failed: float | None) -> str:
    """Why a healthy run is no cure, in words after "but"; empty where it is one.

    failed: the last evaluation of the run that failed, where it came to its end and has not learnt.
    """
    e, last = number(diagnosis.get("evidence") or {}), end(diagnosis)
    first, best, final = (float(e.get(f"loss_{name}", math.nan)) for name in ("first", "best", "last"))
    if last is not None and failed is not None and last >= failed:
        return f"its last evaluation ({last:.3g}) is no better than without it ({failed:.3g})"
    found, constant = evaluations(diagnosis), e.get("loss_of_constant_answer", math.inf)
    if last is None or len(found) < 3:
        return ""
    courses = [(min(first, constant), best, final), (min(max(first, found[0]), constant), min(found), last)]
    if all(at - low > max(RISES * (high - low), TIMES * abs(low)) > 0 for high, low, at in courses):
        return f"its loss rises again (evaluations: {min(found):.3g}, at the end {last:.3g})"
    return ""


def evaluations(diagnosis: dict[str, Any]) -> list[float]:
    """Their losses, since training began."""
    seen = number((diagnosis.get("outcome") or {}).get("eval") or [])
    found = [float(e["eval/loss"]) for e in seen if e.get("epoch") and e.get("eval/loss") is not None]
    return [value for value in found if math.isfinite(value)]


def end(diagnosis: dict[str, Any]) -> float | None:
    """The loss of the last evaluation of a run that came to its end."""
    found = evaluations(diagnosis)
    return found[-1] if found and (diagnosis.get("outcome") or {}).get("status") == "completed" else None
