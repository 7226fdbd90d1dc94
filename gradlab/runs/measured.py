"""The numbers that diagnosis.json keeps of a run's metrics."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from gradlab.base.statistics import quantile
from gradlab.measure.levels import Levels
from gradlab.runs.outcome_class import CLASS_OF_VERDICT, finding_class


def measured(updates: Sequence[dict[str, Any]], began: int | None = None) -> dict[str, Any]:
    """What is kept of the lines of a run's updates. began: the update (attempt) with which it became unstable."""
    losses = Levels(line["train/loss"] for line in updates if not line.get("update/empty"))
    norms = [v for v in (line["grad/norm"] for line in updates) if math.isfinite(v)]
    last = updates[-1] if updates else {}
    applied = last.get("update", 0)
    return {
        "loss/initial": losses.initial if math.isfinite(losses.initial) else None,
        "loss/best": losses.best if math.isfinite(losses.best) else None,
        "loss/final": losses.final if updates else None,
        "grad/norm_median": quantile(norms, 0.5) if norms else None,
        "grad/norm_p95": quantile(norms, 0.95) if norms else None,
        "grad/norm_max": max(norms, default=None),
        "clip/fraction": last.get("clip/fraction"),
        "updates": applied,
        "survived": applied if began is None else sum(not x["update/skipped"] for x in updates if x["attempt"] < began),
        "skipped": sum(line["update/skipped"] for line in updates),
    }


def lost_at(diagnosis: dict[str, Any]) -> int | None:
    """The attempt with which a run became unstable, by its diagnosis.json; None if it did not, or it is not known."""
    code, findings = diagnosis.get("verdict"), diagnosis.get("findings") or []
    own = (f for f in findings if f["code"] == code and (code in CLASS_OF_VERDICT or finding_class(f)))
    return next((f["began"] for f in own), None)
