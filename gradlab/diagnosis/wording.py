"""Phrases that the sentences of several rules share."""

from __future__ import annotations

import math

from gradlab.diagnosis.finished_run import FinishedRun
from gradlab.diagnosis.history import History

CUTS = "detach(), .data, no_grad, a conversion to NumPy or an operation without a derivative (argmax, rounding)"
"""What a graph ends at."""


def percent(share: float) -> str:
    """A share in words: 100% is all of it, and 0% is none."""
    return f"{share:.0%}" if share in (0, 1) or 0.005 <= share < 0.995 else f"{min(max(share, 0.001), 0.999):.1%}"


def moves(usual: float, largest: float, count: int, measured: int, full: bool = False, least: bool = False) -> str:
    """How far updates moved the weights, or would have at the full rate.

    count: of these updates, of so many measured, not all of a run; the others moved nothing, or weights of zero.
    least: it is what the weights' norms before and after show.
    """
    if least:
        return f"one update moved the weights by at least {largest:.2g} times their norm"
    at, moved = ("at the full learning rate ", "would have moved") if full else ("", "moved")
    if count == measured == 1:
        return f"{at}the one update that was measured {moved} the weights by {largest:.2g} times their norm"
    of, weights = f"the {measured} updates that were measured", "the weights"
    if count < measured:
        of, weights = f"of {of} {count}", "weights that were not zero,"
    said = f"{at}{of} {moved} {weights} by {usual:.2g} times their norm"
    return said + f" in the median, and by {largest:.2g} at most" * (count > 1)


def without_largest(history: History) -> str:
    """What is to be said where the mean of the end, as printed, would be another with the largest loss in it."""
    values, end = history.finite_losses[-history.ends_after :], history.end[0]
    alike = not values or f"{math.fsum(values) / len(values):.4g}" == f"{end:.4g}"
    return "" if alike else ", with the largest counted as the second largest,"


def judged_by(run: FinishedRun) -> str:
    """What a run is judged by where no constant answer is its measure."""
    return "judged by its own beginning" + " and evaluations" * bool(run.history.evaluated)


def gain_of(loss: float, constant: float) -> float:
    """By which part of it a loss is below that of a constant answer."""
    return (constant - loss) / abs(constant) if constant else 0.0


def best_evaluation(run: FinishedRun) -> str:
    """The best evaluation beside its constant answer, in words that follow others; nothing where there is none."""
    if not run.history.evaluated or run.eval_constant is None:
        return ""
    return f"; the best evaluation is {min(run.history.evaluated):.4g} (constant: {run.eval_constant:.4g})"


def progress(run: FinishedRun) -> str:
    """The progress of a run that has not learnt, in words."""
    h, end = run.history, run.history.end[0]
    if run.constant is not None and not run.beats_constant:
        gain = gain_of(end, run.constant)
        than = f"the best constant answer{' found' * run.constant_found} ({run.constant:.4g})"
        beside = f"only {gain:.1%} below" if gain > 0 else "no better than"
        beside = "below" if gain > run.learning else beside  # and not beyond its noise, or no evaluation is
        sentence = f"the last losses{without_largest(h)} have a mean of {end:.4g}, {beside} {than}"
        return sentence + best_evaluation(run) * (gain > run.learning)
    began = h.began
    gain = (began - end) / abs(began) if began else 0.0
    if gain > 0 and began - end <= 2 * 2**0.5 * h.end[1]:  # both means have such an error
        return f"the loss did not improve beyond its noise: {began:.4g} to {end:.4g}"
    if end < began and not gain < 1:  # of a loss near zero, as that of a policy, no share says anything
        return f"the loss went from {began:.4g} to {end:.4g} only"
    return (
        f"the loss improved by {gain:.1%} only" if gain > 0 else f"the loss did not improve: {began:.4g} to {end:.4g}"
    )
