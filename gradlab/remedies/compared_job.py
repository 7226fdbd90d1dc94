"""What is compared of one job of a sweep over remedies."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gradlab.base.command import key
from gradlab.base.statistics import quantile
from gradlab.measure.levels import Levels
from gradlab.runs.outcome_class import HEALTHY
from gradlab.runs.record import RunRecord

BASELINE = "none"
UNJUDGED = ("too_short",)
WARM = 10
"""Updates that are not timed, the first; and as many are needed after them."""


@dataclass
class ComparedJob:
    """What is compared of one job."""

    job: str
    remedy: str
    seed: str
    rest: tuple[str, ...]
    """Its other overrides: only runs that share them are compared."""
    verdict: str | None = None
    unhealthy: bool | None = None
    """None of a run without a verdict, that was interrupted, or too short to judge."""
    why_not: str | None = None
    """Why the remedy does not apply."""
    changed: dict[str, list[Any]] = field(default_factory=dict)
    planned: int = 0
    completed: bool = False
    survived: float = 0.0
    """Applied updates over planned ones; 1 of a run that ended healthy."""
    measured: dict[str, float | None] = field(default_factory=dict)

    def value(self, name: str) -> float:
        """A measured number; NaN where there is none."""
        found = self.measured.get(name)
        return math.nan if found is None else found


def measure(lines: Iterable[dict[str, Any]]) -> dict[str, float | None]:
    """What is compared of a run's metrics."""
    lines = list(lines)
    updates = [line for line in lines if "train/loss" in line]
    norms = [line["grad/norm"] for line in updates if math.isfinite(line["grad/norm"])]
    failing = [line["attempt"] for line in updates if line["update/skipped"]]
    rates = [line["throughput/samples_per_second"] for line in updates[WARM:]]
    evaluated = [line["eval/loss"] for line in lines if "eval/loss" in line]
    last = updates[-1] if updates else {}
    return {
        "updates": last.get("update", 0),
        "first_failing": failing[0] if failing else None,
        "last_failing": failing[-1] if failing else None,
        "skipped": len(failing),
        "train_loss": Levels(line["train/loss"] for line in updates if not line.get("update/empty")).final,
        "eval_loss": evaluated[-1] if evaluated else None,
        "grad_norm_median": quantile(norms, 0.5),
        "grad_norm_p99": quantile(norms, 0.99),
        "clip_fraction": last.get("clip/fraction"),
        "seconds_per_sample": 1 / statistics.median(rates) if len(rates) >= WARM else None,
    }


def compared_job(folder: Path, job: str) -> ComparedJob:
    """A job of the sweep in a folder; of one that was killed what it has not written stays empty."""
    run = RunRecord(folder / job)
    chosen = {key(o): o.partition("=")[2] for o in run.overrides}
    rest = tuple(sorted(o for o in run.overrides if key(o) not in ("remedy", "seed")))
    found = ComparedJob(job, chosen.get("remedy", BASELINE), chosen.get("seed", ""), rest, run.verdict)
    found.why_not, found.changed = run.remedy.get("why_not"), run.remedy.get("changed") or {}
    if run.verdict is None or run.status is None:
        return found
    judged = run.status != "interrupted" and run.verdict not in UNJUDGED
    found.unhealthy = run.verdict not in HEALTHY if judged else None
    found.measured, found.planned = measure(run.lines), run.diagnosis["planned"]
    found.completed = run.status == "completed"
    found.survived = 1.0 if found.unhealthy is False else found.value("updates") / max(found.planned, 1)
    return found
