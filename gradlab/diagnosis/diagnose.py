"""From the stream of a run's measurements to its diagnosis."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from gradlab.diagnosis.finding import SEVERITIES, Diagnosis, Finding
from gradlab.diagnosis.finished_run import WILD, FinishedRun
from gradlab.diagnosis.history import History
from gradlab.diagnosis.measurements import Measurements
from gradlab.diagnosis.options import DiagnosisOption
from gradlab.diagnosis.rules.rule import Rule
from gradlab.diagnosis.wording import judged_by

if TYPE_CHECKING:
    from gradlab.measure.samples import Sample

TOGETHER = 64
"""Lines processed at a time: between two updates the processor's caches lose the rules, and one line would take 10x."""


LARGE = 0.01
"""Norm of an update over that of the weights that is large: of the first one, a warm-up would have made it smaller."""
FAR = 5.0
"""Gradient norm over the usual one, or that of the beginning, from which on clipping would have made a difference."""
DROWNED = ("exploding", "diverged", "vanishing", "stalled", "not_learning")
"""Findings that noise in place of gradients may explain."""
UNLEARNT = (*DROWNED, "memorising", "update_too_large")
"""Findings of runs that do not learn, whatever it looks like."""
FEW = 8
"""Values of a channel, below which batch norm leaves little of them but their signs."""
SCALED = ("exploding", "diverged", "dead_units", "saturated_units", "not_learning")
"""Findings that inputs of wild scale may explain."""


class MetricStream:
    """Passes the lines of metrics to the history and to the rules, several at a time."""

    def __init__(
        self,
        thresholds: DiagnosisOption,
        names: list[str] | None = None,
        order: list[str] | None = None,
        called: list[str] | None = None,
    ) -> None:
        """names: parameters whose norms are recorded. order: their layers as they run. called: modules that run."""
        self.thresholds = copy.deepcopy(thresholds)  # rules have state
        self.known = History(thresholds.window, names or [], order, called)
        self.waiting: list[tuple[dict[str, Any], dict[str, list[Any]] | None]] = []
        self.rules = list(self.thresholds.rules())
        for rule in self.rules:
            rule.begin()
        self.following = [rule.observe for rule in self.rules if type(rule).observe is not Rule.observe]

    def observe(self, line: dict[str, Any], layers: dict[str, list[Any]] | None = None) -> None:
        """Add a line of metrics, and what was recorded of layers in that update. Neither may be changed afterwards."""
        self.waiting.append((line, layers))
        if len(self.waiting) == TOGETHER:
            self.catch_up()

    def catch_up(self) -> None:
        """Process the waiting lines."""
        waiting, self.waiting = self.waiting, []
        for line, layers in waiting:
            self.known.observe(line, layers)
            if "grad/norm" in line and not line.get("update/empty"):  # an update, not an evaluation
                for follow in self.following:
                    follow(line, layers, self.known)

    @property
    def history(self) -> History:
        """Of all lines so far."""
        self.catch_up()
        return self.known


def finished(stream: MetricStream, known: Measurements) -> FinishedRun:
    shared = {f.name: getattr(stream.thresholds, f.name) for f in fields(DiagnosisOption)}
    return FinishedRun(history=stream.history, **vars(known), **shared)


def diagnose(
    stream: MetricStream,
    known: Measurements | None = None,
    samples_of: Callable[[list[int]], Mapping[int, list[Sample]]] | None = None,
) -> Diagnosis:
    """The first cause, in the order in which one failure leads to the next; then all other findings.

    known: besides the stream; None: nothing, of a completed run. samples_of: measures the samples of single attempts,
    where the data can be read again.
    """
    run = finished(stream, known or Measurements())
    if samples_of is not None and (suspects := {a for rule in stream.rules for a in rule.suspects(run)}):
        run.samples = samples_of(sorted(suspects))
    findings, checked, unchecked = [], [], dict[str, str]()
    for rule in stream.rules:
        if (why := rule.unable(run)) is not None:
            unchecked[rule.code] = why
            continue
        checked.append(rule.code)
        if (finding := rule.find(run)) is not None:
            finding.causes = [c for c in finding.causes if c not in excluded(run)]
            drowned(run, finding)
            inspected(run, finding)
            if run.input_size >= WILD and finding.code in SCALED:
                wild, alone = f"inputs of wild scale: usually {run.input_size:.2g}", finding.code.endswith("_units")
                finding.causes = [wild] if alone else [wild, *finding.causes]
                finding.evidence["input_size"] = run.input_size
            if run.target_size >= WILD and finding.code in SCALED and not finding.code.endswith("_units"):
                finding.causes = [f"targets of wild scale: usually {run.target_size:.2g}", *finding.causes]
                finding.evidence["target_size"] = run.target_size
            findings.append(finding)
    by_samples(findings)
    deciding = {rule.code for rule in stream.rules if rule.decides}
    yielding = {rule.code for rule in stream.rules if rule.yields(run)}
    if any(f.severity == "critical" for f in findings if f.code not in yielding):
        findings = [f for f in findings if f.code not in yielding]
    unhealthy = any(f.severity == "critical" for f in findings)
    learns = run.learns and not unhealthy
    if unhealthy:  # it is not too short to judge, nor healthy
        findings = [f for f in findings if f.severity != "info" or f.code not in deciding]
    findings.sort(key=lambda f: SEVERITIES.index(f.severity))  # stable: the order of causes within each
    evidence = summary(run)
    first = next((f for f in findings if f.severity != "info" or f.code in deciding), None)
    if first is not None and first.severity != "critical" and run.status == "interrupted":
        first = None
    if first is not None:
        return Diagnosis(first.code, first.sentence, evidence | first.evidence, findings, checked, unchecked, learns)
    return Diagnosis(*plain_verdict(run), evidence, findings, checked, unchecked, learns)


def excluded(run: FinishedRun) -> list[str]:
    """Causes that a run does not have."""
    h = run.history
    usual = min(filter(math.isfinite, (h.norm_drift[0], h.norms_of_all.median)), default=0.0)
    bounded = h.largest <= FAR * usual and not run.ended_nonfinite and run.status != "failed"
    known = {
        "inputs of wild scale": run.input_size > 1 / WILD,  # if it is wild, it is named with its size
        "gradients are not clipped": run.clips or bounded,
        "a batch of outliers": h.attempts > 1 and h.epochs == h.attempts,  # every batch is all of the data
        "there is no warm-up": h.lr_highest > 1.5 * h.lr_first or any(r <= LARGE for r in h.update_ratios.values[:1]),
        "Adam's second moments lag (beta2)": not run.second_moments,
    }
    return [cause for cause, has_it_not in known.items() if has_it_not]


def drowned(run: FinishedRun, finding: Finding) -> None:
    """Noise as the first cause of a run that does not learn, where it is larger than the gradients."""
    times = run.noise / run.history.usual_norm if run.history.usual_norm > 0 else 0.0
    if finding.code in DROWNED and finding.severity == "critical" and times > 1:
        finding.causes = [f"the noise that is added to gradients, with {times:.2g} times their norm", *finding.causes]
        finding.evidence["noise"] = times


def inspected(run: FinishedRun, finding: Finding) -> None:
    """What the inspection of the model shows as the first cause of a run that does not learn, or the only one."""
    if run.inspection is None or finding.severity == "info":
        return
    few = run.inspection.batch_norm_samples
    if finding.code in UNLEARNT and few is not None and few < FEW:
        norm = f"batch norm over {few} value{'s' * (few > 1)} of each channel at a time"
        others = [cause for cause in finding.causes if "at first" not in cause]  # a first gradient is its noise
        finding.causes = [norm, *others]
        finding.evidence["batch_norm_samples"] = few
    if finding.code in UNLEARNT and run.inspection.probabilities:
        finding.causes = ["the model returns probabilities, and the loss takes a softmax of them again"]
        finding.evidence["probabilities"] = True


def by_samples(findings: list[Finding]) -> None:
    """Samples that stand out as the first cause of a loss that rises again, where weight decay is not."""
    samples = next((sorted(f.evidence.get("samples", [])) for f in findings if f.code == "bad_batch"), [])
    for finding in findings if samples else ():
        if finding.code == "diverged" and "weights_last" not in finding.evidence:
            shown = ", ".join(map(str, samples[:5])) + f" and {len(samples) - 5} more" * (len(samples) > 5)
            many = "s" * (len(samples) > 1)
            finding.causes = [f"sample{many} {shown} of the training set (see bad_batch)", *finding.causes]


def plain_verdict(run: FinishedRun) -> tuple[str, str]:
    """Verdict and sentence where no rule found anything."""
    h = run.history
    if run.status == "interrupted":
        return "interrupted", f"stopped after {h.attempts} updates"
    if h.attempts and not h.losses.count:
        return "healthy", f"its losses are not known; {h.usual_norm_said}"
    first = f"{h.losses.initial:.4g}"
    if run.long and h.loss_early > h.losses.initial:  # of a single batch
        first = f"{h.loss_early:.4g}, the median of the first {len(h.first)},"
    sentence = (
        f"the loss went from {first} to {h.losses.final:.4g}" + f", the median of the last {h.losses.window}" * run.long
    )
    if run.rate and h.lr_last >= h.lr_highest > 1.5 * h.lr_first and h.lr_highest < 0.5 * run.rate:
        sentence += f"; the learning rate was rising to the end, where it reached {h.lr_highest / run.rate:.1%} of its"
        sentence += " setting"
    if run.need_not_fall:
        return "healthy", f"{sentence}; it need not fall, since it {run.need_not_fall}"
    sentence += ", which does not count as learnt" * (not run.learns)
    return "healthy", sentence + f"; {judged_by(run)}" * (run.constant is None)


def summary(run: FinishedRun) -> dict[str, Any]:
    """The numbers in the evidence of every diagnosis."""
    h = run.history
    numbers: dict[str, Any] = {
        "updates": h.attempts,
        "skipped": h.skipped,
        "loss_first": h.losses.initial,
        "loss_best": h.losses.best if h.losses.best < math.inf else math.nan,
        "loss_last": h.losses.final,
        "usual_grad_norm": h.usual_norm,
    }
    numbers = {name: value for name, value in numbers.items() if value == value}  # NaN: there is none
    if h.largest_at:
        numbers |= {"largest_grad_norm": h.largest, "largest_grad_norm_at": h.largest_at}
    if run.constant is not None:
        numbers["loss_of_constant_answer"] = run.constant
    if run.summed:
        numbers["summed"] = True
    ratio = h.update_ratios.median
    return numbers | ({"usual_update_ratio": ratio} if math.isfinite(ratio) else {})


def remaining(diagnosis: Diagnosis) -> list[Finding]:
    """The findings other than the verdict, which say what neither it nor another finding does."""
    others = [f for f in diagnosis.findings if f.code != diagnosis.verdict]
    said = [diagnosis.sentence, *(f.sentence for f in others)]
    return [f for f in others if sum(f.sentence in sentence for sentence in said) == 1]
