"""From the stream of a run's measurements to its diagnosis."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from gradlab.diagnosis.causes import by_others, explain
from gradlab.diagnosis.finding import SEVERITIES, Diagnosis, Finding
from gradlab.diagnosis.finished_run import FinishedRun
from gradlab.diagnosis.history import History
from gradlab.diagnosis.measurements import Measurements
from gradlab.diagnosis.options import DiagnosisOption
from gradlab.diagnosis.rules.rule import Rule
from gradlab.diagnosis.wording import judged_by

if TYPE_CHECKING:
    from gradlab.measure.samples import Sample

LITTLE = 0.1
"""Part of the way from a constant answer to the lowest loss, below which a healthy run is told beside that answer."""
TOGETHER = 64
"""Lines processed at a time: between two updates the processor's caches lose the rules, and one line would take 10x."""


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
    unchecked = {rule.code: why for rule in stream.rules if (why := rule.unable(run)) is not None}
    checked = [rule for rule in stream.rules if rule.code not in unchecked]
    found = [(rule, finding) for rule in checked if (finding := rule.find(run)) is not None]
    for _, finding in found:
        explain(run, finding)
    by_others([finding for _, finding in found])
    findings = settled(run, found)
    verdict, sentence, own = verdict_of(run, findings, {rule.code for rule in stream.rules if rule.decides})
    codes, evidence = [rule.code for rule in checked], summary(run) | own
    return Diagnosis(verdict, sentence, evidence, findings, codes, unchecked, has_learnt(run, findings))


def has_learnt(run: FinishedRun, findings: list[Finding]) -> bool:
    """Whether a healthy run has learnt: not where its terms alone have constant answers, and none is learnt."""
    unlearnt: list[str] = next((f.evidence["terms"] for f in findings if f.code == "unlearnt_term"), [])
    none = run.constant is None and 0 < len(unlearnt) == len(run.constants_of_terms)
    return run.learns and not none and all(f.severity != "critical" for f in findings)


def settled(run: FinishedRun, found: Sequence[tuple[Rule, Finding]]) -> list[Finding]:
    """The findings that stand beside the others, the most severe first."""
    if any(f.severity == "critical" for rule, f in found if not rule.yields(run)):
        found = [(rule, f) for rule, f in found if not rule.yields(run)]
    if any(f.severity == "critical" for _, f in found):  # it is not too short to judge, nor healthy
        found = [(rule, f) for rule, f in found if f.severity != "info" or not rule.decides]
    others = {f.code for _, f in found if f.severity != "info"}
    left = [f for rule, f in found if f.severity != "info" or not others.intersection(rule.follows)]
    return sorted(left, key=lambda f: SEVERITIES.index(f.severity))  # stable: the order of causes within each


def verdict_of(run: FinishedRun, findings: list[Finding], deciding: Container[str]) -> tuple[str, str, dict[str, Any]]:
    """Verdict, sentence and evidence: of the first finding that decides, or of a run without one."""
    first = next((f for f in findings if f.severity != "info" or f.code in deciding), None)
    if first is None or (first.severity != "critical" and run.status == "interrupted"):
        return *plain_verdict(run), {}
    return first.code, first.sentence, first.evidence


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
    if len(h.undamaged) < len(h.first):
        sentence += f"; it rose to {max(h.first):.4g} among the first updates"
    if run.rate and h.lr_last >= h.lr_highest > 1.5 * h.lr_first and h.lr_highest < 0.5 * run.rate:
        sentence += f"; the learning rate was rising to the end, where it reached {h.lr_highest / run.rate:.1%} of its"
        sentence += " setting"
    if run.need_not_fall:
        return "healthy", f"{sentence}; it need not fall, since it {run.need_not_fall}"
    sentence += ", which does not count as learnt" * (not run.learns)
    if run.constant is None:
        return "healthy", f"{sentence}; {judged_by(run)}"
    little = run.constant > 0 and h.losses.final - run.lowest > (1 - LITTLE) * (run.constant - run.lowest)
    return "healthy", sentence + f"; the best constant answer: {run.constant:.4g}" * little


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
    if h.lowered_at is not None:
        numbers["loss_scale_lowered_at"] = h.lowered_at
    ratio = h.update_ratios.median
    return numbers | ({"usual_update_ratio": ratio} if math.isfinite(ratio) else {})


def remaining(diagnosis: Diagnosis) -> list[Finding]:
    """The findings other than the verdict, which say what neither it nor another finding does; of equal ones one."""
    others = [f for f in diagnosis.findings if f.code != diagnosis.verdict]
    each = dict.fromkeys(f.sentence for f in others)
    said = [diagnosis.sentence, *each]
    left = {sentence for sentence in each if sum(sentence in other for other in said) == 1}
    first = {f.sentence: f for f in reversed(others)}
    return [f for f in others if f.sentence in left and f is first[f.sentence]]
