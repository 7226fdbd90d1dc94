"""The runs that a study reads: one job's folder, and many of them."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from gradlab.base.json_lines import read_lines


@dataclass
class Run:
    """One job's folder."""

    folder: Path
    sweep: str
    """Name of the sweep that it belongs to."""

    @cached_property
    def overrides(self) -> dict[str, str]:
        """What distinguishes it: the last value of each override, without the plus."""
        given = yaml.safe_load((self.folder / ".hydra" / "overrides.yaml").read_text()) or []
        return {o.lstrip("+").partition("=")[0]: o.partition("=")[2] for o in given}

    @cached_property
    def diagnosis(self) -> dict[str, Any]:
        return json.loads((self.folder / "diagnosis.json").read_text())

    @property
    def applies(self) -> bool:
        """Whether its remedy changed anything."""
        return (self.diagnosis.get("remedy") or {}).get("applies", True)

    @property
    def verdict(self) -> str | None:
        return self.diagnosis.get("verdict") if self.applies else "does not apply"

    @property
    def completed(self) -> bool:
        return self.diagnosis.get("outcome", {}).get("status") == "completed"

    @cached_property
    def lines(self) -> list[dict[str, Any]]:
        return list(read_lines(self.folder / "metrics.jsonl"))

    @cached_property
    def layers(self) -> list[dict[str, Any]]:
        """The records of layers; the first line text what their columns are."""
        return list(read_lines(self.folder / "layers.jsonl"))

    def series(self, name: str) -> list[float]:
        """A metric, an update each; of evaluations, one each."""
        return [line[name] for line in self.lines if name in line]

    @property
    def evals(self) -> list[float]:
        return self.series("eval/loss")

    @property
    def eval_loss(self) -> float:
        """The last evaluation's; infinite if it is not a number, or the run failed before one."""
        last = self.evals[-1] if self.evals else math.inf
        return last if math.isfinite(last) and self.completed else math.inf

    @property
    def final(self) -> float:
        """Median of the last 20 training losses; infinite where the run failed."""
        losses = [v for v in self.series("train/loss")[-20:] if math.isfinite(v)]
        return statistics.median(losses) if losses and self.completed else math.inf

    @property
    def norms(self) -> list[float]:
        """Gradient norms that are finite."""
        return [v for v in self.series("grad/norm") if math.isfinite(v)]

    @property
    def seconds(self) -> float:
        """A sample, the usual one."""
        rates = self.series("throughput/samples_per_second")
        return 1 / statistics.median(rates) if rates else math.nan


class Runs(list[Run]):
    """Runs that can be chosen by what they were given."""

    def where(self, sweep: str | None = None, **wanted: Any) -> Runs:
        """Runs of a sweep whose overrides have these values; `__` stands for a dot: optimizer__lr=0.1."""
        names = {name.replace("__", "."): str(value) for name, value in wanted.items()}
        return Runs(
            r
            for r in self
            if (sweep is None or r.sweep == sweep) and all(r.overrides.get(n) == v for n, v in names.items())
        )

    def median(self, value: Callable[[Run], float]) -> float:
        return statistics.median(map(value, self))

    def verdicts(self) -> dict[str, int]:
        """How often each; a claim about runs that are not there, or that did not run, is a fault of the study."""
        if not self or not all(r.applies and r.verdict for r in self):
            raise ValueError(f"no such runs, or some without a verdict: {[str(r.folder) for r in self]}")
        verdicts = [r.verdict or "error" for r in self]
        return {v: verdicts.count(v) for v in dict.fromkeys(verdicts)}

    @property
    def summary(self) -> str:
        """Their verdicts in words."""
        return ", ".join(f"{count} {verdict}" for verdict, count in self.verdicts().items())

    def all(self, verdict: str) -> bool:
        return bool(self) and all(r.verdict == verdict for r in self)
