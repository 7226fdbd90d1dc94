"""Advice on the learning rate from the sizes of updates, or from a failure.

Lists of numbers in, sentences out: nothing here reads files or imports PyTorch.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from gradlab.diagnosis.advice.line import Advice, two_digits
from gradlab.diagnosis.update_sizes import LARGE_UPDATE

RECORDS = 3
"""Updates whose size must have been measured, every `monitor.step_every`."""
HEALTHY_RATIO, TYPICAL_RATIO = (1e-4, 1e-1), 1e-3
"""Norm of an update, the learning rate included, over that of the weights."""
FAILED = 1.5
"""Times the typical size: updates of a run that fails are suspect beyond it, however healthy they are elsewhere."""
TOO_HIGH = (3, 10)
"""Factors by which to lower a rate that failed."""
RAISE = 10.0
"""The largest factor by which to raise a rate: higher ones were not tried."""
HOURS = ((5, 10, 30, 1e-5, 3e-5), (20, 3, 10, 3e-5, 1e-4), (100, 2, 5, 5e-5, 1e-4), (math.inf, 1, 2, 1e-4, 2e-4))
"""Fine-tuning: hours of data below which, how much lower than pre-training's rate (from, to), absolute rates."""


def failure_advice(what: str, lr: float, base: float) -> Advice:
    """what: failed, and when. lr: the rate then. base: what optimizer.lr was."""
    low, high = TOO_HIGH
    rate = two_digits(lr / low, up=False)
    says = f"{low} to {high} times lower than the rate that failed: {lr / high:.2g} to {lr / low:.2g}"
    of = f" (optimizer.lr={base:g}, on its schedule)" if not math.isclose(lr, base) else ""
    return Advice("lr", says, f"optimizer.lr={rate:g}", f"{what}, at a rate of {lr:.3g}{of}", {"lr": lr})


def update_advice(
    ratios: Sequence[float], lr: float, well: bool = True, causes: Sequence[str] = (), clipped: float = 1.0
) -> Advice:
    """ratios: norm of a whole update over that of the weights, one an update. lr: what optimizer.lr was.

    well: whether nothing is wrong with the run. Else no rate is worth keeping. causes: of its failure, as far as
    known. clipped: the usual part of the gradient that clipping leaves, where that is what makes updates small.
    """
    usable = [r for r in ratios if math.isfinite(r) and r > 0]
    if len(usable) < RECORDS:
        sizes = "the size of 1 update was" if len(usable) == 1 else f"the sizes of {len(usable)} updates were"
        few = f"not enough: {sizes} measured, {RECORDS} are needed"
        why = few if usable else "not measured: how large updates are beside the weights (update/ratio)"
        return Advice("lr", why, None, "metrics.jsonl, before any failure")
    usual = statistics.median(usable)
    suspect = any("learning rate" in cause for cause in causes)
    doubtful = not well and (suspect or not causes)
    low, high = (HEALTHY_RATIO[0], FAILED * TYPICAL_RATIO) if doubtful else HEALTHY_RATIO
    factor = max(min(TYPICAL_RATIO / usual, RAISE), 1 / RAISE)
    rate = two_digits(lr * factor, up=False) if math.isfinite(lr) else math.nan
    again = "" if 1 / RAISE <= TYPICAL_RATIO / usual <= RAISE else f"; {RAISE:g} times at a time, then measure again"
    updates = f"updates of {usual:.2g} of the weights"
    if low <= usual <= high and not well:
        says, rate = f"{updates} are ordinary: look elsewhere for what is wrong", math.nan
        if suspect and math.isfinite(lr):
            least, most = TOO_HIGH
            says = f"{updates} are ordinary, but the rate is a likely cause of what was found: {least} to {most} times"
            says, rate = f"{says} lower is {lr / most:.2g} to {lr / least:.2g}", two_digits(lr / least, up=False)
            if (largest := max(usable)) > HEALTHY_RATIO[1]:  # the one that did the damage, perhaps
                says = (
                    f"{updates} are ordinary, but one that was measured was {largest:.2g}: lower the rate until it is"
                )
                says, rate = f"{says} {LARGE_UPDATE:g}", two_digits(lr * LARGE_UPDATE / largest, up=False)
    elif low <= usual <= high:
        says, rate = f"keep it: {updates} are healthy ({low:g} to {high:g})", lr
    elif usual > high:
        says = f"lower it: {updates} are over {high:g}; typical is {TYPICAL_RATIO:g}{again}"
    elif clipped < 1:
        says, rate = f"{updates} are small as clipping leaves {clipped:.2g} of the gradient: loosen it first", math.nan
    else:
        says = f"raise it: {updates} are under {low:g}; typical is {TYPICAL_RATIO:g}{again}"
    of = f"{len(usable)} updates"
    if len(usable) < len(ratios):
        of = f"{len(usable)} of the {len(ratios)} updates that were measured"
    rests = f"update/ratio: median {usual:.3g}, largest {max(usable):.3g} of {of}"
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
