"""One row per job of a sweep, read from its folder, whatever launcher ran it: results.csv, and the input of maps."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

from gradlab.base.command import command, key
from gradlab.base.fields import value
from gradlab.base.json_lines import number
from gradlab.runs.objective import objective, undominated
from gradlab.runs.outcome_class import finding_class, learns, outcome_class
from gradlab.runs.record import REFUSED, RunRecord
from gradlab.runs.sweep_record import SweepRecord

BEST = 10
"""Jobs that are named as the best, of several objectives."""
REPEATS = ("seed",)
"""Fields whose values repeat a point."""


def read(folder: Path) -> list[dict[str, Any]]:
    """Every job with its overrides, swept fields, verdict, numbers and exit code; a job that left nothing failed."""
    sweep = SweepRecord(folder)
    return [row(job, sweep) for job in sweep.jobs]


def row(job: RunRecord, sweep: SweepRecord) -> dict[str, Any]:
    """One job's row: what all sweeps have, what was swept, the numbers, and `why`."""
    values = {key(o): value(o.partition("=")[2]) for o in job.overrides}
    numbers = numbers_of(job)
    first = {
        "job": str(job.path.relative_to(sweep.path)),
        "overrides": " ".join(job.overrides),
        "verdict": job.verdict or (REFUSED if job.refused else None),
        "outcome": class_of(job, numbers),
        "eval/loss": number(job.last_evaluation.get("eval/loss")),
        "exit_code": job.diagnosis.get("exit_code", 1),
    }
    return first | {name: values.get(name) for name in sweep.swept} | numbers | {"why": why(job)}


def write(rows: list[dict[str, Any]], path: Path) -> None:
    """results.csv."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def minimised(folder: Path, rows: list[dict[str, Any]]) -> list[str]:
    """Put each job's objective into its row, where a sweeper minimises it; returns the commands of the best."""
    jobs = SweepRecord(folder).jobs
    wanted = jobs[0].config.get("objective")
    values = {row["job"]: objective(job.path, wanted) for row, job in zip(rows, jobs, strict=True)}
    for row in rows:
        row["objective"] = values[row["job"]]
    best = set(undominated(values))
    return [
        f"best: job {row['job']}, objective {row['objective']}: {command(again(job.overrides))}"
        for row, job in zip(rows, jobs, strict=True)
        if row["job"] in best
    ][:BEST]


def again(overrides: list[str]) -> list[str]:
    """A job by itself."""
    return [*overrides, *["hydra.mode=RUN"] * any(key(o) == "sweep" for o in overrides)]


def numbers_of(job: RunRecord) -> dict[str, Any]:
    """What the run measured; `loss/final` of one that failed is infinite: there is no model to use."""
    failed = {"loss/final": math.inf} if job.status == "failed" else {}
    return job.measured | failed | {"planned": job.diagnosis.get("planned"), "seconds": job.outcome.get("seconds")}


def class_of(job: RunRecord, numbers: dict[str, Any]) -> str:
    """The class of a run; one that left no diagnosis was stopped."""
    if not job.diagnosis and "diagnosis.json" not in job.unreadable:
        return "stopped"
    last = math.nan if numbers["loss/final"] is None else numbers["loss/final"]
    findings = job.diagnosis.get("findings") or []
    of_finding = next((finding_class(f) for f in findings if f["code"] == job.verdict), "")
    return outcome_class(job.verdict, job.status, learns(job.diagnosis), last, of_finding)


def why(job: RunRecord) -> str:
    """The error that ended the run, else the sentence of its diagnosis."""
    return job.outcome.get("error") or job.diagnosis.get("sentence") or "left no diagnosis.json"
