"""Advice on max_norm from the gradient norms of a run.

Lists of numbers in, sentences out: nothing here reads files or imports PyTorch.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gradlab.base.statistics import quantile
from gradlab.diagnosis.advice.line import Advice, two_digits

ENOUGH = 20
"""Steady updates that a distribution needs at least."""
FENCE = 1.5
"""Tukey's: a norm above the upper quartile by so many interquartile ranges, in logarithms, is an outlier."""
VANISHED = 100.0
"""Norms whose median falls by more than this factor from the first tenth or half to the rest show no usual size."""
TOO_LOW = 0.1
"""Of the usual norm, below which a bound leaves too little of it."""
UNSTEADY = 10.0
"""Norms whose quartiles differ by more than this factor are not steady."""
USUAL = {
    "transformer": ((1.0,), "usual for transformers: 1.0"),
    "rnn": ((0.5, 1.0), "usual for recurrent networks: 0.5 to 1.0"),
    "policy": ((0.5,), "usual for policy gradients: 0.5"),
    "deep": ((1.0,), "usual for more than 100 layers: 1.0"),
    "cnn": ((), "usual for convolutional networks: no clipping, unless they are unstable"),
}


@dataclass
class SteadyNorms:
    """The usual gradient norms of a run, before clipping."""

    norms: list[float]
    left_out: str
    """Which updates were left out, and why."""
    why_not: str = ""
    """Why they cannot be used; empty if they can."""


def steady_norms(norms: Sequence[float], failed: bool) -> SteadyNorms:
    """The part of a run that shows its usual norms.

    norms: of its updates before the first failure. Left out are what is not finite, the explosion that led to a
    failure, the first tenth, and the first half where norms have halved or doubled since.
    """
    usable = [n for n in norms if math.isfinite(n) and n > 0]
    left = [f"{len(norms) - len(usable)} that were zero or not finite"] if len(usable) < len(norms) else []
    if failed and usable:
        usual, before = statistics.median(usable), len(usable)
        while usable and usable[-1] > UNSTEADY * usual:
            usable.pop()
        left += [f"the last {before - len(usable)} before the failure"] * (len(usable) < before)
    first = math.ceil(len(usable) / 10)
    beginning, usable, left = usable[:first], usable[first:], [*left, *[f"the first {first}"] * (first > 0)]
    middle = len(usable) // 2
    if middle >= ENOUGH:
        early, late = statistics.median(usable[:middle]), statistics.median(usable[middle:])
        highest = max(early, statistics.median(beginning))
        if highest > VANISHED * late:
            decayed = f"the norms decayed from {highest:.3g} to {late:.3g}"
            why = f"not enough: {decayed}, and a bound from either would be wrong"
            return SteadyNorms(usable, "left out: " + ", ".join(left) if left else "", why)
        if not 0.5 <= late / early <= 2:
            usable = usable[middle:]
            left.append(f"{middle} more: the median went from {early:.3g} to {late:.3g}")
    result = SteadyNorms(usable, "left out: " + ", ".join(left) if left else "")
    if len(usable) < ENOUGH:
        many = "1 norm" if len(usable) == 1 else f"{len(usable)} norms"
        result.why_not = f"not enough: {many} before any failure, {ENOUGH} are needed"
    elif (spread := quantile(usable, 0.75) / quantile(usable, 0.25)) > UNSTEADY:
        result.why_not = f"not enough: the norms are never steady: their quartiles differ by a factor of {spread:.3g}"
    return result


def outlier_fence(norms: Sequence[float]) -> float:
    """The norm beyond which one is an outlier; at least a quarter above the upper quartile."""
    low, high = quantile(norms, 0.25), quantile(norms, 0.75)
    spread: float = (high / low) ** FENCE
    return high * max(spread, 1.25)


def beyond(norms: Sequence[float], limit: float) -> float:
    """Fraction of the norms that a limit would clip."""
    return sum(n > limit for n in norms) / len(norms)


def clip_advice(
    part: SteadyNorms, architecture: str | None, clip: dict[str, Any], clipped: float | None, summed: bool
) -> list[Advice]:
    """max_norm from the measured norms, and the usual values for the architecture.

    clip: the run's own, its `name` and fields. clipped: fraction of its updates that it clipped. summed: whether
    gradients were those of a sum, whose size is that of the batch.
    """
    found, norms = [], part.norms
    if part.why_not:
        found.append(Advice("clip", part.why_not, None, f"grad/norm; {part.left_out}".rstrip("; ")))
    else:
        limit = two_digits(outlier_fence(norms))
        numbers: dict[str, Any] = {"max_norm": limit, "fraction": beyond(norms, limit), "updates": len(norms)}
        numbers |= {"largest": max(norms)}
        numbers |= {f"q{round(100 * q)}": quantile(norms, q) for q in (0.5, 0.9, 0.99)}
        share = f"{numbers['fraction']:.1%}" if numbers["fraction"] else "none"
        says = f"clip the outliers: {limit:g} would clip {share} of {len(norms)} updates"
        own = clip.get("max_norm") if clip.get("name") == "norm" and clip.get("norm_type", 2) == 2 else None
        if own is not None:
            says += f"; max_norm={own:g} clipped {beyond(norms, own):.1%} of them"
        rests = f"{len(norms)} norms before clipping: median {numbers['q50']:.3g}, 90% under {numbers['q90']:.3g}"
        rests += f", 99% under {numbers['q99']:.3g}, largest {max(norms):.3g}"
        if clip.get("name") not in (None, "none") and clipped is not None:
            rests += f" (of a run with clip={clip['name']}, which acted on {clipped:.1%} of its updates)"
        rests += f"; {part.left_out}" * bool(part.left_out)
        found.append(Advice("clip", says, f"clip=norm clip.max_norm={limit:g}", rests, numbers))
    if architecture is None:
        return found
    values, says = USUAL[architecture]
    for value in values or (None,):
        override: str | None = "clip=none" if value is None else f"clip=norm clip.max_norm={value:g}"
        fraction = None if value is None or part.why_not else beyond(norms, value)
        measured = "" if fraction is None else f"; {value:g} would clip {fraction:.1%} of these updates"
        if value is not None and fraction is not None and value < TOO_LOW * statistics.median(norms):
            measured += ": far too low here"
            override = None
        measured += " (for means; this run's gradients are of a sum)" * summed
        about = f"architecture: {architecture}" + "; the same norms" * (fraction is not None)
        numbers = {"max_norm": value, "fraction": fraction}
        found.append(Advice("clip", says + measured, override, about, numbers))
    return found
