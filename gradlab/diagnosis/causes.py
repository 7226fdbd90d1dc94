"""Causes that findings of several rules share, and those that what is known of a run rules out."""

from __future__ import annotations

import math

from gradlab.base.visible import several
from gradlab.diagnosis.advice.learning_rate import TYPICAL_RATIO
from gradlab.diagnosis.finding import Finding
from gradlab.diagnosis.finished_run import WILD, FinishedRun
from gradlab.diagnosis.rules.not_learning import ONLY_TRAINING, RUNNING, UNLIKE, NotLearning
from gradlab.diagnosis.series import median
from gradlab.diagnosis.update_sizes import LARGE_UPDATE

NOTABLE_PEAK = 5.0
"""Gradient norm over the usual one, or that of the beginning, from which on clipping would have made a difference."""
GROWN = ("exploding", "diverged")
"""Findings after which gradients may be larger than before."""
FLAT_UNITS = ("dead_units", "saturated_units")
LOST = ("exploding", "diverged", "vanishing", "stalled", "not_learning")
DROWNED = (*LOST, *FLAT_UNITS)
"""Findings that noise in place of gradients may explain."""
UNLEARNT = (*LOST, "memorising", "update_too_large")
"""Findings of runs that do not learn, whatever it looks like."""
SIGNS_ALONE = 8
"""Values of a channel, below which batch norm leaves little of them but their signs."""
RARELY = 0.01
"""Part of the updates below which clipping hardly ever acts."""
BRAKES = 10.0
"""Times a usual element of the gradient, above which eps makes steps of little else."""
OF_THE_START = ("initial weights that are too large", "the initialisation")
"""Causes that a run shows from the first update on."""
MUCH_DROPOUT = 0.5
"""The largest part of a layer's outputs that is usually dropped."""
SCALED = ("exploding", "diverged", *FLAT_UNITS, "overclipped", "not_learning")
"""Findings that inputs of wild scale may explain."""


def explain(run: FinishedRun, finding: Finding) -> None:
    """Drop the causes that a run does not have, and put those first that were measured."""
    known = excluded(run)
    finding.causes = [cause for cause in finding.causes if cause not in known]
    if run.clips:
        acts = "the bound of clipping is so high that it hardly ever acts"
        finding.causes = [acts if cause == "gradients are not clipped" else cause for cause in finding.causes]
    drowned(run, finding)
    braked(run, finding)
    unbounded(run, finding)
    summed(run, finding)
    inspected(run, finding)
    scaled(run, finding)
    if finding.code == "not_learning" and {*finding.causes} <= {*NotLearning.causes[1:]}:
        finding.sentence += "; none of what was measured says why"


def unbounded(run: FinishedRun, finding: Finding) -> None:
    """Adam's betas as the first cause of updates that are too large, where they leave a step no bound."""
    too_large = any("rate" in cause and "too high" in cause for cause in finding.causes)
    if run.betas is not None and too_large and finding.severity != "info":
        first, second = run.betas
        why = f"beta1 ({first:g}) is above the root of beta2 ({second:g}), and a step has no bound"
        finding.causes = [f"Adam's betas: {why}", *finding.causes]
        finding.evidence["betas"] = [first, second]


def summed(run: FinishedRun, finding: Finding) -> None:
    """A sum over samples as the first cause of updates that are too large, where their size is that of the gradient."""
    too_large = any("rate" in cause and "too high" in cause for cause in finding.causes)
    if run.summed and not run.second_moments and too_large and finding.severity != "info":
        finding.causes = ["the loss is summed over the samples", *finding.causes]


def scaled(run: FinishedRun, finding: Finding) -> None:
    """Inputs and targets of wild scale as the first causes; of flat units, inputs as the only one."""
    units = finding.code in FLAT_UNITS
    if finding.code not in SCALED:
        return
    if run.input_size >= WILD:
        inputs = f"inputs of wild scale: up to {run.input_size:.2g} (the median of a batch)"
        finding.causes = [inputs, *([] if units else finding.causes)]
        finding.evidence["input_size"] = run.input_size
    if run.target_size >= WILD and not units:
        finding.causes = [
            f"targets of wild scale: up to {run.target_size:.2g} (the median of a batch)",
            *(cause for cause in finding.causes if not cause.startswith("targets whose mean or size")),
        ]
        finding.evidence["target_size"] = run.target_size


def excluded(run: FinishedRun) -> list[str]:
    """Causes that a run does not have."""
    h = run.history
    usual = min(filter(math.isfinite, (h.norm_drift[0], h.norms_of_all.median)), default=0.0)
    bounded = h.largest <= NOTABLE_PEAK * usual and not run.failed
    later = [*h.update_ratios.values][1:]
    throughout = len(later) > 0 and median(sorted(later)) > LARGE_UPDATE  # not the first alone, nor those of a spike
    idle = h.clipped < RARELY * h.applied
    known = {
        "inputs of wild scale": run.input_size > 1 / WILD,  # if it is wild, it is named with its size
        "gradients are not clipped": (run.clips and not idle) or bounded or (run.second_moments and throughout),
        "a batch of outliers": h.attempts > 1 and h.epochs == h.attempts,  # every batch is all of the data
        **dict.fromkeys(OF_THE_START, run.learnt_once),
        "there is no warm-up": throughout
        or run.learnt_once
        or h.lr_highest > 1.5 * h.lr_first
        or any(r <= LARGE_UPDATE for r in h.update_ratios.values[:1]),
        "Adam's second moments lag (beta2)": not run.second_moments,
        "the learning rate is too low": h.lowered_at is not None,  # larger updates would pass fp16's range sooner
    }
    return [cause for cause, has_it_not in known.items() if has_it_not]


def drowned(run: FinishedRun, finding: Finding) -> None:
    """Noise as the first cause of a run that does not learn, where it is larger than the gradients.

    Where these have grown, or units are flat, it is compared with the first ones: noise never grows.
    """
    h = run.history
    norm, of = h.usual_norm, "their norm"
    if finding.code in GROWN and h.norm_drift[0] < norm:
        norm, of = h.norm_drift[0], "that of the first ones"
    elif finding.code in FLAT_UNITS and h.norms_of_all.count:  # which pass less of it
        norm, of = h.norms_of_all.values[0], "that of the first one"
    times = run.noise / norm if norm > 0 else 0.0
    if finding.code in DROWNED and finding.severity == "critical" and times > 1:
        finding.causes = [f"the noise that is added to gradients, with {times:.2g} times {of}", *finding.causes]
        finding.evidence["noise"] = times


def braked(run: FinishedRun, finding: Finding) -> None:
    """An eps far above the gradient's usual size as the only cause of updates that are too small."""
    h, shapes = run.history, (run.header or {}).get("shapes") or []
    if finding.code not in ("stalled", "not_learning") or not h.update_ratios.median < TYPICAL_RATIO or not shapes:
        return
    size = h.usual_norm / sum(map(math.prod, shapes)) ** 0.5
    if size > 0 and run.eps > BRAKES * size:
        finding.causes = [
            f"the optimizer's eps, {run.eps / size:.3g} times a usual element of the gradient: steps shrink"
        ]
        finding.evidence["eps"] = run.eps / size


def inspected(run: FinishedRun, finding: Finding) -> None:
    """What the inspection of the model shows as the first cause of a run that does not learn, or the only one."""
    if run.inspection is None or finding.severity == "info":
        return
    few = run.inspection.batch_norm_samples
    if finding.code in (*UNLEARNT, *FLAT_UNITS) and few is not None and few < SIGNS_ALONE:
        norm = f"batch norm over {few} value{'s' * (few > 1)} of each channel at a time"
        others = [cause for cause in finding.causes if "at first" not in cause]  # a first gradient is its noise
        finding.causes = [norm, *others]
        finding.evidence["batch_norm_samples"] = few
    if finding.code == "memorising" and few is not None:
        finding.causes = [each for cause in finding.causes for each in ([RUNNING] * (cause == UNLIKE) + [cause])]
    if finding.code == "not_learning" and run.out_of_reach:
        finding.causes = [run.out_of_reach]
        finding.evidence |= {"target_size": run.target_size, "output_bound": run.inspection.output_bound}
    name, part = run.inspection.dropout or ("", 0.0)
    if finding.code == "not_learning" and part > MUCH_DROPOUT:
        others = [cause for cause in finding.causes if not cause.startswith(ONLY_TRAINING)]
        finding.causes = [f"{name or 'the model'} drops {part:.0%} of what goes in", *others]
        finding.evidence |= {"dropout": part, "dropout_module": name}
    if finding.code in UNLEARNT and run.inspection.probabilities:
        finding.causes = ["the model returns probabilities, and the loss takes a softmax of them again"]
        finding.evidence["probabilities"] = True


def by_others(findings: list[Finding]) -> None:
    """What one finding explains of others: samples that stand out, and a loss without a floor, whatever the rate."""
    by_samples(findings)
    if any(finding.code == "unbounded_loss" for finding in findings):
        for finding in findings:
            if finding.code == "exploding":
                finding.causes = ["the loss has no floor (see unbounded_loss)"]


def by_samples(findings: list[Finding]) -> None:
    """Samples that stand out as the first cause of what begins with their update, where weight decay is not."""
    bad = next((f for f in findings if f.code == "bad_batch" and f.evidence.get("samples")), None)
    if bad is None:
        return
    for finding in findings:
        rises_again = finding.code == "diverged" and "weights_last" not in finding.evidence
        if rises_again or (finding.code == "exploding" and finding.began == bad.began):
            samples = sorted(bad.evidence["samples"])
            named = f"sample{'s' * (len(samples) > 1)} {several(samples, 5)}"
            finding.causes = [f"{named} of the training set (see bad_batch)", *finding.causes]
