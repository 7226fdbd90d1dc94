"""What a run's measurements advise: max_norm, learning rate, accumulation. Lists of numbers in, sentences out.

Nothing here reads files or imports PyTorch.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from gradlab.effect import quantile

RECORDS = 3
"""Updates whose size must have been measured: they are looked at every `monitor.step_every`."""
ENOUGH = 20
"""Settled updates below which a distribution says nothing."""
FENCE = 1.5
"""Tukey's: beyond the upper quartile by so many interquartile ranges, of logarithms, a norm is an outlier."""
UNSETTLED = 10.0
"""Quartiles that differ by more than this factor are no usual size."""
HEALTHY_RATIO, TYPICAL_RATIO = (1e-4, 1e-1), 1e-3
"""Norm of an update over that of the parameter, the rate included."""
TOO_HIGH = (3, 10)
"""What a rate that failed is divided by."""
RAISE = 10.0
"""What a rate is multiplied with at most: higher ones were not tried."""
USUAL = {
    "transformer": ((1.0,), "usual for transformers: 1.0"),
    "rnn": ((0.5, 1.0), "usual for recurrent networks: 0.5 to 1.0"),
    "policy": ((0.5,), "usual for policy gradients: 0.5"),
    "deep": ((1.0,), "usual for more than 100 layers: 1.0"),
    "cnn": ((), "usual for convolutional networks: no clipping, unless they are unstable"),
}
HOURS = ((5, 10, 30, 1e-5, 3e-5), (20, 3, 10, 3e-5, 1e-4), (100, 2, 5, 5e-5, 1e-4), (math.inf, 1, 2, 1e-4, 2e-4))
"""Fine-tuning: hours of data below which, how much lower than pre-training's rate (from, to), absolute rates."""


@dataclass
class Advice:
    """One line: what to do, and why."""

    about: str
    """clip, lr or accumulation."""
    says: str
    override: str | None
    """To be pasted behind `python -m gradlab`; None where there was not enough to go by."""
    rests_on: str
    """The measurement."""
    numbers: dict[str, Any] = field(default_factory=dict)


@dataclass
class Settled:
    """The usual gradient norms of a run, before clipping."""

    norms: list[float]
    left_out: str
    """Which updates were left out, and why."""
    why_not: str = ""
    """Why they cannot be gone by; empty if they can."""


def settled(norms: Sequence[float], failed: bool) -> Settled:
    """The part of a run that shows what is usual.

    norms: of its updates before the first failure. Left out are what is not finite, the explosion that led to a
    failure, the first tenth, and the first half where norms have halved or doubled since.
    """
    usable = [n for n in norms if math.isfinite(n) and n > 0]
    left = [f"{len(norms) - len(usable)} that were zero or not finite"] if len(usable) < len(norms) else []
    if failed and usable:
        usual, before = statistics.median(usable), len(usable)
        while usable and usable[-1] > UNSETTLED * usual:
            usable.pop()
        left += [f"the last {before - len(usable)} before the failure"] * (len(usable) < before)
    first = math.ceil(len(usable) / 10)
    usable, left = usable[first:], [*left, *[f"the first {first}"] * (first > 0)]
    middle = len(usable) // 2
    if middle >= ENOUGH:
        early, late = statistics.median(usable[:middle]), statistics.median(usable[middle:])
        if not 0.5 <= late / early <= 2:
            usable = usable[middle:]
            left.append(f"{middle} more: the median went from {early:.3g} to {late:.3g}")
    result = Settled(usable, "left out: " + ", ".join(left) if left else "")
    if len(usable) < ENOUGH:
        result.why_not = f"not enough: {len(usable)} settled updates before any failure, {ENOUGH} are needed"
    elif (spread := quantile(usable, 0.75) / quantile(usable, 0.25)) > UNSETTLED:
        result.why_not = f"not enough: the norms never settled, their quartiles differ by a factor of {spread:.3g}"
    return result


def outlier_fence(norms: Sequence[float]) -> float:
    """The norm beyond which one is an outlier; at least a quarter above the upper quartile."""
    low, high = quantile(norms, 0.25), quantile(norms, 0.75)
    return high * max((high / low) ** FENCE, 1.25)


def two_digits(value: float, up: bool = True) -> float:
    """Rounded to two significant digits."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    digits = math.ceil(value / unit - 1e-9) if up else round(value / unit)
    return float(f"{digits * unit:.2g}")


def beyond(norms: Sequence[float], limit: float) -> float:
    """Fraction of the norms that a limit would clip."""
    return sum(n > limit for n in norms) / len(norms)


def clip_advice(
    part: Settled, architecture: str | None, clip: dict[str, Any], clipped: float | None, summed: bool
) -> list[Advice]:
    """max_norm from the measured norms, and the usual values beside it.

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
        says = f"clip the outliers: {limit:g} would clip {numbers['fraction']:.1%} of the updates"
        if not numbers["fraction"]:
            says += ", none so far: clipping is an insurance here"
        own = clip.get("max_norm") if clip.get("name") == "norm" else None
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
        override = "clip=none" if value is None else f"clip=norm clip.max_norm={value:g}"
        share = None if value is None or part.why_not else beyond(norms, value)
        measured = "" if share is None else f"; {value:g} would clip {share:.1%} of these updates"
        measured += ", nearly all: too low here" if share is not None and share > 0.9 else ""
        measured += " (for means; this run's gradients are of a sum)" * summed
        about = f"architecture: {architecture}" + "; the same norms" * (share is not None)
        numbers = {"max_norm": value, "fraction": share}
        found.append(Advice("clip", says + measured, override, about, numbers))
    return found


def failure_advice(what: str, lr: float, base: float) -> Advice:
    """what: failed, and when. lr: the rate then. base: what optimizer.lr was."""
    low, high = TOO_HIGH
    rate = two_digits(lr / low, up=False)
    says = f"{low} to {high} times lower than the rate that failed: {lr / high:.2g} to {lr / low:.2g}"
    of = f" (optimizer.lr={base:g}, on its schedule)" if not math.isclose(lr, base) else ""
    return Advice("lr", says, f"optimizer.lr={rate:g}", f"{what}, at a rate of {lr:.3g}{of}", {"lr": lr})


def update_advice(ratios: Sequence[float], lr: float) -> Advice:
    """ratios: norm of a whole update over that of the weights, one an update. lr: what optimizer.lr was."""
    usable = [r for r in ratios if math.isfinite(r) and r > 0]
    if len(usable) < RECORDS:
        few = f"not enough: {len(usable)} sizes of updates were measured, {RECORDS} are needed"
        why = few if usable else "not measured: how large updates are beside the weights (update/ratio)"
        return Advice("lr", why, None, "metrics.jsonl, before any failure")
    usual = statistics.median(usable)
    low, high = HEALTHY_RATIO
    factor = max(min(TYPICAL_RATIO / usual, RAISE), 1 / RAISE)
    rate = two_digits(lr * factor, up=False) if math.isfinite(lr) else math.nan
    if low <= usual <= high:
        says, rate = f"keep it: updates of {usual:.2g} of the weights are healthy ({low:g} to {high:g})", lr
    elif usual > high:
        says = f"lower it: updates of {usual:.2g} of the weights are over {high:g}; typical is {TYPICAL_RATIO:g}"
    else:
        says = f"raise it: updates of {usual:.2g} of the weights are under {low:g}; typical is {TYPICAL_RATIO:g}"
    rests = f"update/ratio: median {usual:.3g}, largest {max(usable):.3g} of {len(usable)} updates"
    return Advice("lr", says, f"optimizer.lr={rate:g}" if rate == rate else None, rests, {"ratio": usual})


def finetuning_advice(pretraining: float | None, hours: float | None) -> list[Advice]:
    """pretraining: the rate of pre-training. hours: of training data; the tables count speech."""
    note = "tables for speech, which disagree: 1e-5 to 3e-5 is 3 to 10 times lower in one, 10 to 30 in another"
    if hours is None:
        if pretraining is None:
            return []
        low, high = TOO_HIGH
        says = f"fine-tune {low} to {high} times lower than pre-training ({note})"
        rests = f"pre-training's rate of {pretraining:g}; --hours says how much data there is"
        return [Advice("lr", says, f"optimizer.lr={two_digits(pretraining / low, up=False):g}", rests)]
    _, low, high, least, most = next(row for row in HOURS if hours < row[0])
    found = []
    if pretraining is not None:
        says = f"with {hours:g} hours fine-tune {low} to {high} times lower than pre-training ({note})"
        rate = two_digits(pretraining / low, up=False)
        found.append(Advice("lr", says, f"optimizer.lr={rate:g}", f"pre-training's rate of {pretraining:g}"))
    says = f"with {hours:g} hours {least:g} to {most:g} is usual ({note})"
    return [*found, Advice("lr", says, f"optimizer.lr={least:g}", "--hours; nothing was measured")]


def batch_advice(wanted: int, batch_size: int, world_size: int) -> list[Advice]:
    """Accumulation that makes an update of `wanted` samples: exactly, or as near as it gets."""
    rests = f"data.batch_size={batch_size} on {world_size} rank{'s' * (world_size > 1)}"
    unit = batch_size * world_size

    def steps(micro: int, number: int) -> Advice:
        total = micro * world_size * number
        override = f"accumulation=fixed accumulation.steps={number}"
        override = f"data.batch_size={micro} {override}" if micro != batch_size else override
        exact = "" if total == wanted else f", not {wanted}"
        says = f"{number} x {micro} samples on each of {world_size} ranks are {total} an update{exact}"
        says = says.replace(" on each of 1 ranks", "")
        numbers = {"steps": number, "batch_size": micro, "global_batch_size": total}
        return Advice("accumulation", says, override, rests, numbers)

    if wanted % unit == 0:
        return [steps(batch_size, wanted // unit)]
    found = []
    if wanted % world_size == 0:
        each = wanted // world_size
        fitting = [m for m in range(batch_size, 0, -1) if each % m == 0]
        if fitting and (each < batch_size or 2 * fitting[0] >= batch_size):  # micro-batches much smaller waste time
            found.append(steps(fitting[0], each // fitting[0]))
    near = sorted({max(wanted // unit, 1), wanted // unit + 1}, key=lambda number: abs(number * unit - wanted))
    return found + [steps(batch_size, number) for number in near]
