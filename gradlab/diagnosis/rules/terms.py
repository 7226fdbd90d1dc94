"""Rules over the terms of a loss."""

from __future__ import annotations

import math
import statistics
from collections import deque
from dataclasses import dataclass
from typing import Any

from gradlab.diagnosis.finding import Finding
from gradlab.diagnosis.finished_run import FinishedRun
from gradlab.diagnosis.history import History
from gradlab.diagnosis.rules.rule import Rule, rule
from gradlab.diagnosis.series import Blocks
from gradlab.diagnosis.wording import judged_by

PREFIX = "train/loss/"


@rule("unlearnt_term", position=198)
@dataclass
class UnlearntTerm(Rule):
    """The loss is learnt, and a term of it that depends on the targets ends no better than a constant answer.

    As where another term outweighs it. That answer is found by minimising the term alone, over one output for all
    samples. Nothing is said of a term that still falls.
    """

    needs = ("long",)
    causes = ("another term outweighs it", "what it asks for does not follow from the inputs")
    fixes = ("weigh the terms so that each has a part in the gradient", "check its targets")
    reach: float = 0.02
    """Part of the constant answer's loss that noise may hide, at most."""

    def begin(self) -> None:
        self.terms: dict[str, Blocks] = {}
        self.last: dict[str, deque[float]] = {}

    def observe(self, line: dict[str, Any], layers: dict[str, list[Any]] | None, history: History) -> None:
        for name in line:
            if name.startswith(PREFIX) and math.isfinite(line[name]):
                self.terms.setdefault(name, Blocks()).add(line[name])
                self.last.setdefault(name, deque(maxlen=100)).append(line[name])

    def find(self, run: FinishedRun) -> Finding | None:
        if not run.trains or run.history.attempts < run.plateau or run.status != "completed":
            return None
        found = {name: end for name in run.constants_of_terms if (end := self.end(run, name)) is not None}
        if not found:
            return None
        each = [
            f"{name} ends at {end:.4g} (the best constant answer to it: {run.constants_of_terms[name]:.4g})"
            for name, end in found.items()
        ]
        they = "they are" if len(found) > 1 else "it is"
        sentence = f"of the terms of the loss {' and '.join(each)}: {they} not learnt"
        sentence += f"; the loss itself is {judged_by(run)}" * (run.constant is None)
        return self.found("warning", sentence, None, terms=list(found), ends=list(found.values()))

    def end(self, run: FinishedRun, name: str) -> float | None:
        """Mean of the last quarter of a term that is not learnt; else None."""
        quarters, constant = self.terms.get(PREFIX + name, Blocks()).parts(4), run.constants_of_terms[name]
        if not quarters:
            return None
        noise = 3 * statistics.stdev(self.last[PREFIX + name]) / max(run.history.finite / 4, 1) ** 0.5
        fall = run.learning * min(abs(quarters[0] - constant), abs(constant))
        least = constant - max(fall, min(noise, self.reach * abs(constant)))
        return quarters[3] if quarters[3] >= least and quarters[2] - quarters[3] <= noise else None
