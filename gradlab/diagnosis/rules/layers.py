"""Rules over the gradient norms of layers, in the order of execution."""

from __future__ import annotations

import math
import re
import statistics
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gradlab.base.visible import several
from gradlab.diagnosis.finding import Finding
from gradlab.diagnosis.finished_run import FinishedRun
from gradlab.diagnosis.history import History
from gradlab.diagnosis.initial_sizes import SMALL
from gradlab.diagnosis.rules.rule import Rule, rule
from gradlab.diagnosis.rules.saturation import Units
from gradlab.diagnosis.series import Samples
from gradlab.diagnosis.update_sizes import LARGE_UPDATE
from gradlab.diagnosis.wording import CUTS, progress
from gradlab.update.layers import late_to_early_ratio

if TYPE_CHECKING:
    from gradlab.diagnosis.inspection import ActivationOutput

TENTHS_FROM = 20
"""Layers of which a tenth is more than one: of fewer the first and the last one are compared."""
ALL = 0.995
"""Part of a layer's outputs that is all of them but for rounding: what is behind it gets no gradient."""
SATURATED = "saturated units (see saturated_units)"
CHAIN = 3
"""Layers of a chain over which a factor each adds up."""


def passed(run: FinishedRun) -> float:
    """The part of a gradient's norm that layers of nearly dead units let through: 0 where all of one are dead.

    Of each the root of the share of its live units, in which it is as large as before.
    """
    dead = [m.dead or 0.0 for m in run.inspection.activations] if run.inspection is not None else []
    return math.prod(math.sqrt(1 - part) for part in dead if part >= Units.fraction)


def paths(run: FinishedRun) -> dict[str, bool]:
    """Whether the model has what carries a gradient through many layers; as far as known."""
    i = run.inspection
    return {"residual connections": bool(i and i.residual), "normalisation": bool(i and i.normalised)}


def gated(kind: str) -> bool:
    """Whether a class of modules, or of their cells, has gates."""
    return kind.removesuffix("Cell") in ("LSTM", "GRU")


def flattens(activation: ActivationOutput) -> bool:
    """Whether its slope falls towards zero at both ends."""
    by_name = re.search("sigm|tanh", activation.operation.lower())
    return activation.saturated is not None or bool(by_name) or gated(activation.kind)


@rule("vanishing", position=130)
@dataclass
class Vanishing(Rule):
    """Early layers, or early time steps, get almost no gradient, usually and at the end, and the model does not learn.

    Nor do dead units explain it: layers of nearly all dead ones let the root of their live share pass.
    """

    needs = ("long", "layers")
    causes = (
        "activations whose slope is below 1 (sigmoid, tanh) in a deep or long chain",
        "initial weights that are too small",
        "no residual connections or normalisation",
    )
    fixes = (
        "use ReLU with He initialisation",
        "add residual connections",
        "normalise layers",
        "use gated cells in a recurrent network",
    )
    ratio: float = 1000.0
    """Gradient norm of the late layers over that of the early ones."""
    small: float = SMALL
    """Usual size of initial weights, the standard deviation times the root of the fan-in, below which they are a
    likelier cause than the activations: PyTorch's own is 0.58. From 1 on they are none."""
    records: int = 3
    """Records over time steps that are needed: at first every recurrent network is over the ratio."""

    def begin(self) -> None:
        self.ratios, self.times = Samples(), Samples()
        self.latest, self.latest_times = deque[float](maxlen=5), deque[float](maxlen=5)
        self.at: int | None = None

    def observe(self, line: dict[str, Any], layers: dict[str, list[Any]] | None, history: History) -> None:
        if not layers:
            return
        norms = [norm for norm, has in zip(history.layers, history.reached, strict=True) if has]  # see broken_graph
        if len(norms) > 1 and all(map(math.isfinite, norms)):
            ratio = late_to_early_ratio(norms)
            self.ratios.add(ratio)
            self.latest.append(ratio)
            if ratio <= self.ratio:
                self.at = None
            elif self.at is None:
                self.at = line["attempt"]
        times = [t for t in layers.get("time/ratio", []) if t == t]
        if times:
            self.latest_times.append(max(times))
            self.times.add(max(times))

    def find(self, run: FinishedRun) -> Finding | None:
        depth, time = self.ratios.median, self.times.median
        if run.inspection is not None and run.inspection.layer_ratio is not None and math.isinf(depth):
            depth = min(depth, run.inspection.layer_ratio)  # not fp16's flushing to zero
        if run.beats_constant_anywhere or run.frozen or run.failed:
            return None
        live = passed(run)
        if math.isinf(depth) if not live else depth * live <= self.ratio < depth:
            return None  # dead_units
        if run.decayed:  # of weights that are gone, no gradient is left
            return None
        if depth > self.ratio and statistics.median(self.latest) > self.ratio:
            return self.over_layers(run, depth)
        still = self.times.count >= self.records and statistics.median(self.latest_times) > self.ratio
        if time > self.ratio and still:
            sentence = f"the gradient at the last time steps is usually {time:.3g} times that at the first ones"
            if math.isinf(time):
                sentence = "the gradient at the first time steps is usually exactly zero, and that at the last is not"
            sentence += f", and {progress(run)}"
            found = self.found("critical", sentence, None, late_to_early_time=time)
            found.causes = [c for c in found.causes if "residual" not in c]  # they are between layers
            seen = run.inspection.activations if run.inspection is not None else []
            if run.inspection is not None and not any(map(flattens, seen)):  # as of ReLU
                found.causes = [c for c in found.causes if "sigmoid" not in c]
            found.evidence |= {"gated": True} if any(gated(m.kind) for m in seen) else {}
            return found
        return None

    def over_layers(self, run: FinishedRun, depth: float) -> Finding:
        """Late layers' gradients are so many times the early ones'."""
        h = run.history
        every = [*zip(h.layer_names, h.layers, strict=True)]
        reached = [pair for pair, has in zip(every, h.reached, strict=True) if has] or every  # none at the end
        (bottom, low), (top, high) = reached[0], reached[-1]
        early, late = (
            ("early layers", "late layers") if len(reached) >= TENTHS_FROM else ("the first layer", "the last layer")
        )
        sentence = f"the gradients of {late} are usually {depth:.3g} times those of {early}"
        if math.isinf(depth):
            sentence = f"the gradients of {early} are usually exactly zero, and those of {late} are not"
        sentence += f" (norms at the end: {high:.2g} of {h.words(top)}, {low:.2g} of {h.words(bottom)})"
        evidence = {"late_to_early_ratio": depth, "early": low, "late": high}
        usually = self.at is not None and 2 * self.at <= h.attempts  # later than that it was so before, too
        found = self.found("critical", f"{sentence}, and {progress(run)}", self.at if usually else None, **evidence)
        missing = [name for name, has in paths(run).items() if not has]
        if len(reached) < CHAIN:  # too few to multiply a gradient
            found.causes, missing = [c for c in found.causes if "initial" in c], []
        found.causes = self.possible(run, found.causes, missing)
        found.evidence |= {"missing": missing} if run.inspection is not None else {}
        found.evidence |= {"at_first": self.at_first}
        return found

    def possible(self, run: FinishedRun, causes: list[str], missing: list[str]) -> list[str]:
        """The causes that what is known of the model leaves. missing: what would carry a gradient through layers."""
        if not self.at_first:  # not the initial weights
            taken = "early layers had a gradient at first, and updates took it away"
            rate = "the learning rate is too high"
            if missing and 0 < run.history.update_ratios.largest <= LARGE_UPDATE:
                return [f"no {' or '.join(missing)}: {taken}, though none that was measured was large", rate]
            return [f"{rate}: {taken}"]
        if run.inspection is not None:
            seen = run.inspection.activations
            saturated = max((m.saturated or 0.0 for m in seen), default=0.0)
            if saturated >= ALL:
                return [SATURATED]
            causes = [SATURATED, *causes] if saturated >= Units.fraction else causes
            causes = [c for c in causes if any(map(flattens, seen)) or "sigmoid" not in c]
        if run.sizes:
            of_weights, middle = [c for c in causes if "initial" in c], statistics.median(run.sizes)
            others = [c for c in causes if "initial" not in c]
            causes = [*of_weights, *others] if middle < self.small else causes if middle < 1 else others
        if missing and run.inspection is not None:
            return [c.replace("residual connections or normalisation", " or ".join(missing)) for c in causes]
        return causes if missing else [c for c in causes if "residual" not in c]

    @property
    def at_first(self) -> bool:
        """Whether early layers had as little of a gradient at the first record."""
        return self.ratios.values[0] > self.ratio

    def unable(self, run: FinishedRun) -> str | None:
        nothing = "the weights that are trained are of one layer" if len(run.history.layer_names) < 2 else None
        return super().unable(run) or (nothing if not self.times.count else None)


@rule("broken_graph", position=100)
@dataclass
class BrokenGraph(Rule):
    """Trained parameters never get a gradient."""

    needs = ("layers",)
    causes = (f"{CUTS} on the way", "a part of the model that is not used")
    fixes = ("remove what detaches the graph", "freeze parameters that are not meant to be trained")
    share: float = 0.1
    """Fraction of parameter tensors without a gradient above which it is not just an unused part."""

    def begin(self) -> None:
        self.missing: set[int] | None = None

    def observe(self, line: dict[str, Any], layers: dict[str, list[Any]] | None, history: History) -> None:
        if layers:
            without = {i for i, norm in enumerate(layers["grad/layer"]) if norm is None}
            self.missing = without if self.missing is None else self.missing & without

    def find(self, run: FinishedRun) -> Finding | None:
        recorded = [run.history.names[i] for i in sorted(self.missing or ())]
        names = (
            recorded
            if run.never_had_gradient is None
            else [name for name in recorded if name in run.never_had_gradient]
        )
        if not names:
            return None
        many = len(names) > self.share * len(run.history.names)
        unused = not any(run.history.runs(name) for name in names)
        severity = "critical" if run.stuck or (many and not unused) else "info" if unused else "warning"
        found = self.found(severity, f"no gradient ever reaches {several(names)}", 1, parameters=names)
        found.causes = ["the forward pass does not use that part of the model"] if unused else found.causes
        return found
