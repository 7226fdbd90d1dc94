"""Remedies side by side: runs of a sweep that differ in their remedy alone, seed by seed, against that without one."""

from __future__ import annotations

import csv
import json
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gradlab import table
from gradlab.command import key
from gradlab.effect import LARGE, SEEDS, SMALL, final, improvement, judge, paired, quantile, seeds
from gradlab.loggers.local import plain, read_lines
from gradlab.remedy import changes

BASELINE = "none"
WELL = ("healthy", "small_but_healthy")
WARM = 10
"""Updates that are not timed, the first; and as many are needed after them."""
SPIKED = "loss_spike_recovered"
"""Well too, unless it is what the runs without a remedy show."""
ORDER = ("baseline", "cured", "helped", "no effect", "worse", "not judged", "does not apply")


@dataclass
class Run:
    """What is compared of one job."""

    job: str
    remedy: str
    seed: str
    rest: tuple[str, ...]
    """Its other overrides: only runs that share them are compared."""
    verdict: str | None = None
    ill: bool | None = None
    """None of a run that gave no verdict, or was interrupted."""
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
        "train_loss": final([line["train/loss"] for line in updates]),
        "eval_loss": evaluated[-1] if evaluated else None,
        "grad_norm_median": quantile(norms, 0.5),
        "grad_norm_p99": quantile(norms, 0.99),
        "clip_fraction": last.get("clip/fraction"),
        "seconds_per_sample": 1 / statistics.median(rates) if len(rates) >= WARM else None,
    }


def read(folder: Path, job: str) -> Run:
    """A job from its folder; what a job that was killed has not written stays empty."""
    import yaml

    overrides = yaml.safe_load((folder / job / ".hydra" / "overrides.yaml").read_text()) or []
    chosen = {key(o): o.partition("=")[2] for o in overrides}
    rest = tuple(sorted(o for o in overrides if key(o) not in ("remedy", "seed")))
    run = Run(job, chosen.get("remedy", BASELINE), chosen.get("seed", ""), rest)
    try:
        told = json.loads((folder / job / "diagnosis.json").read_text())
    except (OSError, json.JSONDecodeError):
        return run
    remedy = told.get("remedy") or {}
    run.verdict, run.why_not, run.changed = told.get("verdict"), remedy.get("why_not"), remedy.get("changed") or {}
    if run.verdict is None or "outcome" not in told:
        return run
    run.ill = run.verdict not in WELL if told["outcome"]["status"] != "interrupted" else None
    run.measured, run.planned = measure(read_lines(folder / job / "metrics.jsonl")), told["planned"]
    run.completed = told["outcome"]["status"] == "completed"
    run.survived = 1.0 if run.ill is False else run.value("updates") / max(run.planned, 1)
    return run


def compare(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """One row a remedy, sorted by evidence; for each set of other overrides, their baseline first."""
    rows = []
    for rest in dict.fromkeys(run.rest for run in runs):
        group = [run for run in runs if run.rest == rest]
        baseline = {run.seed: run for run in group if run.remedy == BASELINE}
        spikes = any(run.verdict == SPIKED for run in baseline.values())
        for run in group:
            run.ill = run.ill and (spikes or run.verdict != SPIKED)
        names = dict.fromkeys(run.remedy for run in group)
        if len(names) > 1:
            mine = [row(name, [run for run in group if run.remedy == name], baseline) for name in names]
            rows += sorted(mine, key=evidence)
    return rows


def evidence(row: dict[str, Any]) -> tuple[float, ...]:
    """Sorts rows: the judgement, the number of seeds, the effects on updates and on the loss, the loss itself."""
    effects = [-(e["mean"] if e["low"] is None else e["low"]) if e else 0.0 for e in (row["survived"], row["improved"])]
    return ORDER.index(row["judgement"]), -row["seeds"], *effects, row["train_loss"] or 0.0


def row(name: str, runs: list[Run], baseline: dict[str, Run]) -> dict[str, Any]:
    """A remedy against the baseline, paired by seed."""
    pairs = [(baseline[run.seed], run) for run in runs if run.seed in baseline]
    pairs = [(before, after) for before, after in pairs if before.ill is not None and after.ill is not None]
    survived = [after.survived - before.survived for before, after in pairs]
    improved = [improvement(before.value("train_loss"), after.value("train_loss")) for before, after in pairs]
    same_loss = not any(field.split(".")[0] == "loss" for run in runs for field in run.changed)
    to_the_end = all(run.completed for pair in pairs for run in pair)
    comparable = same_loss and to_the_end and all(map(math.isfinite, improved))
    refused = [run.why_not for run in runs if run.why_not]
    if name == BASELINE:
        judgement, why = "baseline", ""
    elif refused and not pairs:
        judgement, why = "does not apply", refused[0]
    elif not pairs:
        without = "no run of it and of the baseline under the same seed gave a verdict"
        judgement, why = "not judged", without if baseline else f"there is no baseline: add {BASELINE} to +remedy="
    else:
        ill = [before.ill is True for before, _ in pairs], [after.ill is True for _, after in pairs]
        judgement, why = judge(*ill, survived, improved if comparable else [])
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
        "improved": asdict(paired(improved)) if pairs and comparable and name != BASELINE else None,
        "runs": [asdict(run) for run in runs],
    }


def shown(row: dict[str, Any]) -> dict[str, str]:
    """A row as it is printed; numbers are medians over the seeds."""

    def number(name: str, form: str = ".4g") -> str:
        return "-" if row.get(name) is None else format(row[name], form)

    def effect(name: str) -> str:
        e = row[name]
        if not e:
            return "-"
        return f"{e['mean']:+.1%}" + (f" [{e['low']:+.1%}, {e['high']:+.1%}]" if e["low"] is not None else "")

    failing = number("first_failing", ".0f")
    failing += f"-{number('last_failing', '.0f')}" if row.get("last_failing") != row.get("first_failing") else ""
    few = f" ({seeds(row['seeds'])})" if 0 < row["seeds"] < SEEDS and row["judgement"] != "baseline" else ""
    return {
        "remedy": row["remedy"],
        "judgement": row["judgement"] + few,
        "verdicts": ", ".join(f"{count} {verdict}" for verdict, count in row["verdicts"].items()) or "-",
        "updates": f"{number('updates', '.0f')}/{number('planned', '.0f')}",
        "more updates": effect("survived"),
        "failing": failing,
        "loss": number("train_loss"),
        "lower loss": effect("improved"),
        "eval loss": number("eval_loss"),
        "norm 50%": number("grad_norm_median", ".3g"),
        "99%": number("grad_norm_p99", ".3g"),
        "clipped": number("clip_fraction", ".0%"),
        "skipped": number("skipped", ".0f"),
        "cost": number("cost", ".2f"),
    }


LEAST = (
    "eval loss",
    "updates",
    "clipped",
    "lower loss",
    "skipped",
    "failing",
    "norm 50%",
    "more updates",
    "99%",
    "cost",
)
"""Columns that a narrow terminal leaves out, the last first; comparison.csv has all."""

NOTE = f"""\
Each remedy against none, under the same seed. more updates: applied ones, as a fraction of those planned; lower loss:
fall of the median of the last 20 losses, as a fraction of none's, where both runs came to their end. From {SEEDS} seeds
on the 95% interval of the mean follows; an effect counts where it leaves out 0 (one in 20 does so by chance) and the
mean is at least {SMALL:.0%}. Of fewer seeds each must differ by {LARGE:.0%}. cost: seconds a sample, over none's."""


def report(folder: Path, jobs: Sequence[str]) -> None:
    """Compare the jobs of a sweep over remedies: comparison.csv and comparison.json in its folder, and a table."""
    rows = compare([read(folder, job) for job in jobs])
    if not rows:
        return
    (folder / "comparison.json").write_text(json.dumps(plain(rows), indent=2, allow_nan=False) + "\n")
    with (folder / "comparison.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(flat(rows[0])), extrasaction="ignore")
        writer.writeheader()
        writer.writerows(map(flat, rows))
    for overrides in dict.fromkeys(row["overrides"] for row in rows):
        group = [row for row in rows if row["overrides"] == overrides]
        cells = [shown(row) for row in group]
        print()
        table.show(f"remedies, {overrides}", list(cells[0]), [list(c.values()) for c in cells], LEAST)
        for row in group:
            if row["judgement"] != "baseline":
                print(f"  {row['remedy']}: {'; '.join(filter(None, (changes(row['changed']), row['why'])))}")
    print(NOTE, flush=True)


def flat(row: dict[str, Any]) -> dict[str, Any]:
    """A row of comparison.csv: without the single runs, one column a number."""
    kept = {k: v for k, v in row.items() if k not in ("runs", "verdicts", "changed", "survived", "improved")}
    effects = {
        f"{name}_{part}": (row[name] or {}).get(part)
        for name in ("survived", "improved")
        for part in ("mean", "size", "low", "high")
    }
    return kept | {"verdicts": shown(row)["verdicts"], "changed": changes(row["changed"])} | effects


def median(values: Iterable[float]) -> float | None:
    """Over the seeds, of what there is."""
    there = [v for v in values if not math.isnan(v)]
    return statistics.median(there) if there else None
