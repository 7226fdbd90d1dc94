"""The number that a job gives to Hydra's sweepers, which minimise it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from gradlab.base.json_lines import number
from gradlab.base.option import Invalid
from gradlab.runs.record import RunRecord


def objective(folder: Path, wanted: Any) -> float | list[float]:
    """What `objective=` asks for of a run; infinite where it is ill, too short to judge, or did not come to its end.

    wanted: null, a metric, or a list of metrics for several objectives. Raises `Invalid` where a good run has no such
    metric.
    """
    run = RunRecord(folder)
    good = run.status == "completed" and run.verdict != "too_short" and not run.diagnosis.get("ill")
    each = [value(run, name) if good else math.inf for name in (wanted if isinstance(wanted, list) else [wanted])]
    return each if isinstance(wanted, list) else each[0]


def value(run: RunRecord, wanted: str | None) -> float:
    """The last value of a metric, or with `:best` its smallest; with a minus sign that of its negative."""
    if wanted is None:
        wanted = "eval/loss" if run.last_evaluation else "loss/final"
    name, _, which = wanted.removeprefix("-").partition(":")
    sign = -1 if wanted.startswith("-") else 1
    evaluated = [number(line) for line in run.outcome.get("eval") or []]
    lines = evaluated if any(name in line for line in evaluated) else [run.measured]
    lines = lines if any(name in line for line in lines) else run.lines
    found = [line[name] for line in lines if name in line and line.get("epoch", 1)]  # 0: before training
    values = [sign * v for v in found if isinstance(v, (int, float)) and not math.isnan(v)]
    if not found:
        names = dict.fromkeys(name for line in run.lines for name in line)
        raise Invalid("objective", wanted, f"the run has no such metric; it has {', '.join([*names, *run.measured])}")
    return float(min(values) if which == "best" else values[-1]) if values else math.inf


def undominated(values: dict[str, float | list[float]]) -> list[str]:
    """The names whose finite values no others dominate: one, or with several objectives the Pareto front."""
    points = {name: v if isinstance(v, list) else [v] for name, v in values.items()}
    points = {name: v for name, v in points.items() if all(map(math.isfinite, v))}

    def beaten(by: list[float], point: list[float]) -> bool:
        return by != point and all(a <= b for a, b in zip(by, point, strict=True))

    return [name for name, point in points.items() if not any(beaten(by, point) for by in points.values())]
