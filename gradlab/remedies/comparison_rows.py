"""Remedies side by side: runs of a sweep that differ in their remedy alone, seed by seed, against that without one."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from gradlab.remedies.compared_job import BASELINE, ComparedJob, measure
from gradlab.remedies.paired_effect import improvement, judge, paired

SPIKED = "loss_spike_recovered"
"""Counts as healthy, unless it is what the runs without a remedy show."""
ORDER = ("baseline", "cured", "helped", "no effect", "worse", "not judged", "does not apply")


def compare(runs: Sequence[ComparedJob]) -> list[dict[str, Any]]:
    """One row a remedy, sorted by evidence; for each set of other overrides, their baseline first."""
    rows = []
    for rest in dict.fromkeys(run.rest for run in runs):
        group = [run for run in runs if run.rest == rest]
        baseline = {run.seed: run for run in group if run.remedy == BASELINE}
        spikes = any(run.verdict == SPIKED for run in baseline.values())
        for run in group:
            run.unhealthy = run.unhealthy and (spikes or run.verdict != SPIKED)
        names = dict.fromkeys(run.remedy for run in group)
        if len(names) > 1:
            mine = [row(name, [run for run in group if run.remedy == name], baseline) for name in names]
            rows += sorted(mine, key=evidence)
    return rows


def evidence(row: dict[str, Any]) -> tuple[float, ...]:
    """Sorts rows: the judgement, the number of seeds, the effects on updates and on the loss, the loss itself."""
    effects = [-(e["mean"] if e["low"] is None else e["low"]) if e else 0.0 for e in (row["survived"], row["improved"])]
    return ORDER.index(row["judgement"]), -row["seeds"], *effects, row["train_loss"] or 0.0


def row(name: str, runs: list[ComparedJob], baseline: dict[str, ComparedJob]) -> dict[str, Any]:
    """A remedy against the baseline, paired by seed."""
    pairs = [(baseline[run.seed], run) for run in runs if run.seed in baseline]
    pairs = [(before, after) for before, after in pairs if before.unhealthy is not None and after.unhealthy is not None]
    survived = [after.survived - before.survived for before, after in pairs]
    improved = [improvement(before.value("train_loss"), after.value("train_loss")) for before, after in pairs]
    same_loss = not any(field.split(".")[0] == "loss" for run in runs for field in run.changed)
    to_the_end = all(run.completed for pair in pairs for run in pair)
    comparable = same_loss and to_the_end and all(map(math.isfinite, improved))
    positive = all(run.value("train_loss") > 0 for pair in pairs for run in pair)  # else no share of it says anything
    refused = [run.why_not for run in runs if run.why_not]
    if name == BASELINE:
        judgement, why = "baseline", ""
    elif refused and not pairs:
        judgement, why = "does not apply", refused[0]
    elif not pairs:
        without = "no run of it and of the baseline under the same seed gave a verdict"
        judgement, why = "not judged", without if baseline else f"there is no baseline: add {BASELINE} to +remedy="
    else:
        unhealthy = [before.unhealthy is True for before, _ in pairs], [after.unhealthy is True for _, after in pairs]
        judgement, why = judge(*unhealthy, survived, improved if comparable else [])
    measured = [run for run in runs if run.measured]
    middle = {name: median(run.value(name) for run in measured) for name in measure([])}
    cost = [after.value("seconds_per_sample") / before.value("seconds_per_sample") for before, after in pairs]
    return {
        "overrides": " ".join(runs[0].rest),
        "remedy": name,
        "judgement": judgement,
        "why": why,
        "seeds": len(pairs),
        "verdicts": {v: [run.verdict for run in runs].count(v) for v in dict.fromkeys(r.verdict for r in runs) if v},
        "changed": next((run.changed for run in runs if run.changed), {}),
        "planned": median(run.planned for run in measured),
        **middle,
        "cost": median(cost),
        "survived": asdict(paired(survived)) if pairs and name != BASELINE else None,
        "improved": asdict(paired(improved)) if pairs and comparable and positive and name != BASELINE else None,
        "runs": [{"ill" if key == "unhealthy" else key: value for key, value in asdict(run).items()} for run in runs],
    }


def median(values: Iterable[float]) -> float | None:
    """Over the seeds, of what there is."""
    there = [v for v in values if not math.isnan(v)]
    return statistics.median(there) if there else None
