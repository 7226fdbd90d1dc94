"""The rule over a layer whose gradient is much larger than all others."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from gradlab.diagnosis.finding import Finding
from gradlab.diagnosis.finished_run import FinishedRun
from gradlab.diagnosis.history import History
from gradlab.diagnosis.rules.rule import Rule, rule
from gradlab.diagnosis.series import Samples
from gradlab.diagnosis.wording import percent

NEXT_TO_NOTHING = 0.01
"""The gradient norm of all others over that of the whole, up to which they get next to none."""
SHRINKS = 2.0
"""A gradient over that of the layer before, from which on each layer of a chain passes little of it on."""


def part_of_squares(norms: list[float], i: int) -> float:
    """The part of the squared norm of all that is one's."""
    total = math.hypot(*norms)
    return (norms[i] / total) ** 2 if total else 0.0


def shrinking(norms: list[float]) -> bool:
    """Whether each layer, in the order of execution, gets far less of a gradient than the next."""
    return all(0 < SHRINKS * before < after for before, after in pairwise(norms))


@rule("dominant_layer", position=170)
@dataclass
class DominantLayer(Rule):
    """One layer's gradient is much larger than all others, and clipping the whole gradient makes the others tiny."""

    follows = ("vanishing", "dead_units", "exploding", "broken_graph")
    needs = ("long", "layers", "steps")
    causes = (
        "one layer's outputs are on a far larger scale",
        "a loss term that affects only one layer",
        "the others get next to no gradient, as behind dead or saturated units",
    )
    fixes = ("clip each layer by itself", "normalise the layer's outputs, or weigh down its loss term")
    part: float = 0.9
    """Part of the squared norm of the whole gradient that is one layer's."""
    starved: float = 0.1
    """Usual relative change of the other layers over that of this one, below which they are starved."""
    small: float = 2e-4
    """Usual relative change of the other layers above which they are not: usual is 1e-4 to 1e-2."""
    often: float = 0.8
    """Fraction of the records in which that holds, and of the updates in which clipping acts."""

    def begin(self) -> None:
        self.counts: dict[int, int] = {}
        self.records = 0
        self.acted = Samples()

    def observe(self, line: dict[str, Any], layers: dict[str, list[Any]] | None, history: History) -> None:
        self.acted.add(float(line.get("clip/coefficient", 1.0) < 1))
        norms = history.layers
        if not layers or len(norms) < 3:
            return
        self.records += 1
        largest = max(range(len(norms)), key=norms.__getitem__)
        if part_of_squares(norms, largest) > self.part:
            self.counts[largest] = self.counts.get(largest, 0) + 1

    def find(self, run: FinishedRun) -> Finding | None:
        h = run.history
        if not self.counts or not h.layer_ratios:
            return None
        layer = max(self.counts, key=self.counts.__getitem__)
        if self.counts[layer] < self.often * self.records:
            return None
        name, moved = h.layer_names[layer], dict(h.layer_ratios)
        own, others = moved.get(name, math.nan), [v for k, v in moved.items() if k != name]
        rest = statistics.median(others) if others else math.nan
        part = part_of_squares(h.layers, layer)
        sentence = f"{percent(part)} of the squared gradient norm is that of {h.words(name)},"
        sentence += f" one of {len(h.layers)} layers"
        evidence = {"layer": name, "part": part, "update_ratio": own, "others": rest}
        idle = statistics.fmean(self.acted.values) < self.often or not run.clips_whole
        starved = not idle and rest < min(self.starved * own, self.small)
        severity = "info" if not starved else "critical" if run.stuck else "warning"
        if starved:
            sentence += f"; clipping the whole leaves the others updates of {rest:.1g} of their weights,"
            sentence += f" against {own:.1g}"
        found = self.found(severity, sentence, None, **evidence)
        found.causes = self.possible(run, layer, part)
        return found

    def possible(self, run: FinishedRun, layer: int, part: float) -> list[str]:
        """The causes that what is known of the run leaves."""
        h, (scale, term, others) = run.history, self.causes
        if run.decayed is not None:
            return ["weight decay that has taken the weights away"]
        if part < 1 and layer == len(h.layers) - 1 and shrinking(h.layers) and shrinking(h.first_layers):
            return ["gradients that shrink at each layer on their way back"]
        one = run.constant is not None and not run.constant_found  # a loss that is known, of one term
        left = [scale] if one else [scale, term]
        left = left if part < 1 else []  # the others have none at all
        return [*left, others] if 1 - part <= NEXT_TO_NOTHING**2 else left
