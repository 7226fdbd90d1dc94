"""Changes of the learning rate, from the size of updates beside that of the weights."""

from __future__ import annotations

import math
from collections.abc import Iterator

from gradlab.base.statistics import quantile
from gradlab.config.schema import Config
from gradlab.diagnosis.advice.learning_rate import FAILED, RECORDS, TYPICAL_RATIO
from gradlab.diagnosis.advice.line import two_digits
from gradlab.diagnosis.update_sizes import LARGE_UPDATE, SMALL_UPDATE
from gradlab.diagnosis.wording import moves
from gradlab.remedies.evidence import Evidence
from gradlab.remedies.proposal import Proposal, code, named, setting
from gradlab.update.adam import AdamW, BetasOption
from gradlab.update.schedule import Constant
from gradlab.update.sgd import SGD

TOO_FAR = 10.0
"""Times the usual size beyond which updates are the cause, whatever else is seen."""
LEAST = 1e-4
"""A rate that must fall by more, and below as much of the usual one, is not the cause: it is the gradient."""
FALLEN = 1e-2
"""Of the full rate, at which next to nothing is learnt."""
ROOM = 2 / 3
"""Of the rate with which a run would have come to its end in the same time to the overflow."""
SPREAD = 1e3
"""Of the gradient's norm over a run, with which no one rate of SGD has updates of usual size throughout."""
HIGHER = 2.0
"""Times a rate below which another is hardly higher."""
LONGER = 4
"""Times a run that learns too slowly is made longer, at a rate that cannot be higher."""
HIGH_MOMENTUM = 0.95
"""Above those in use, of 0.9 mostly, where a run explodes."""


def usual_rate(c: Config) -> float:
    """The default of the optimizer."""
    return float(type(c.optimizer).lr)


def excess(e: Evidence) -> float:
    """How many times larger than usual updates are: at most TYPICAL_RATIO in the middle, LARGE_UPDATE at the most."""
    return max(excesses(e)) if e.ratios else math.nan


def excesses(e: Evidence) -> tuple[float, float]:
    """Of the middle and of the largest; not of a first update that alone was somewhat large, as of Adam it may be.

    Nor of one after which the run learnt: what it lost again that did not take.
    """
    middle = e.usual_ratio / TYPICAL_RATIO if len(e.ratios) >= RECORDS else 0.0
    first_alone = 0 < middle < 1 and max(e.ratios[1:]) <= LARGE_UPDATE and e.ratios[0] <= TOO_FAR * LARGE_UPDATE
    first_alone |= middle > 0 and "best" in e.found.get("diverged", {})
    return middle, max(e.ratios[1:] if first_alone else e.ratios) / LARGE_UPDATE


def beyond_rates(e: Evidence, c: Config) -> bool:
    """Whether updates are so large that no rate in use makes them usual."""
    over = excess(e)
    return over > 1 / LEAST and c.optimizer.lr / over < LEAST * usual_rate(c)


def scheduled(c: Config) -> bool:
    """Whether an update may have been at less than the full rate, for which `Evidence.ratios` are."""
    return not isinstance(c.schedule, Constant)


def moved(e: Evidence, c: Config) -> str:
    """How far updates moved the weights."""
    return moves(e.usual_ratio, e.largest_ratio, len(e.ratios), max(e.measured, len(e.ratios)), scheduled(c))


def rate(e: Evidence, c: Config, factor: float, why: str) -> Proposal:
    return setting("optimizer.lr", why, {"optimizer.lr": two_digits(c.optimizer.lr * factor, up=False)})


def lower_rate(e: Evidence, c: Config) -> Iterator[Proposal]:
    """The rate whose updates are of the usual size; a run that overflowed late: the rate that would last to its end."""
    over, forward = excess(e), e.overflow is not None and e.overflow.phase == "forward"
    applied = (e.failed_at or 0) - (e.skipped - e.streak)  # but for one, before it failed
    if e.failed_at and applied >= 20 and e.failed_at < e.planned and forward and not over > TOO_FAR:
        lasts = e.failed_at / e.planned * ROOM
        why = (
            f"it overflowed at update {e.failed_at} of {e.planned}; if the time to that goes as 1 / the rate, it lasts"
        )
        yield rate(e, c, lasts, why)
    elif over > FAILED and not beyond_rates(e, c):
        middle, largest = excesses(e)
        aim = f"a median of {TYPICAL_RATIO:g}" if middle >= largest else f"{LARGE_UPDATE:g} at most"
        yield rate(e, c, 1 / over, f"{moved(e, c)}; this rate aims at {aim}")


def rate_of_units(e: Evidence, c: Config) -> Iterator[Proposal]:
    """As `lower_rate`, where an update was so large that it may have turned units off, or saturated them."""
    if e.largest_ratio > LARGE_UPDATE:
        yield from lower_rate(e, c)


def lower_rates(e: Evidence, c: Config) -> Iterator[Proposal]:
    """As `lower_rate`; without a measurement that says how far, a tenth; none where no update was applied at all."""
    if e.failed_at == 1 or beyond_rates(e, c):
        return
    found = list(lower_rate(e, c))
    unsaid = "the sizes of the updates do not say how far to lower the rate: a tenth of it"
    yield from found or [rate(e, c, 0.1, unsaid)]


def rate_that_took(e: Evidence, c: Config) -> Iterator[Proposal]:
    """Of a gradient that updates took away: those that were measured after it say nothing of the rate that did."""
    if e.largest_ratio > TOO_FAR * LARGE_UPDATE:
        yield from lower_rates(e, c)
    else:
        yield rate(
            e, c, 0.1, "early layers had a gradient at first, and updates took it away; this is a tenth of the rate"
        )


def mean_of_samples(e: Evidence, c: Config) -> Iterator[Proposal]:
    """In place of a sum, which makes an update of SGD as many times larger as a window has samples."""
    if not (isinstance(c.optimizer, SGD) and excess(e) > FAILED):
        return
    why = f"{moved(e, c)}: the loss is summed over the samples"
    if c.loss.reduction == "sum":
        yield setting("loss.reduction", why, {"loss.reduction": "mean"})
    elif e.summed:  # by the user's own function
        yield code("loss", "return the mean over the samples", why)


def less_momentum(e: Evidence, c: Config) -> Iterator[Proposal]:
    """The usual one: the sum of all later steps by a gradient is 1 / (1 - momentum) times the first."""
    if isinstance(c.optimizer, SGD) and c.optimizer.momentum > HIGH_MOMENTUM:
        times = 1 / (1 - c.optimizer.momentum) if c.optimizer.momentum < 1 else math.inf
        why = f"a gradient moves the weights {times:.3g} times its first step in all; with 0.9, ten times"
        yield setting("optimizer.momentum", why, {"optimizer.momentum": 0.9})


def usual_betas(e: Evidence, c: Config) -> Iterator[Proposal]:
    """The default of what Adam's mean of squares forgets, where it forgets these before the gradients themselves."""
    if isinstance(c.optimizer, BetasOption) and e.found.get(e.verdict, {}).get("betas"):
        default, own = type(c.optimizer), c.optimizer
        why = f"beta1 ({own.beta1:g}) is above the root of beta2 ({own.beta2:g}): a step may be any number of rates"
        mean = {"optimizer.beta1": default.beta1} if own.beta1 > default.beta2**0.5 else {}
        yield setting("optimizer.beta2", why, {**mean, "optimizer.beta2": default.beta2})


def unmeasured_rate(e: Evidence, c: Config) -> Iterator[Proposal]:
    """A tenth of the learning rate where updates were not measured; where they were small, it is not the cause."""
    if math.isnan(excess(e)):
        yield from lower_rates(e, c)


def higher_rate(e: Evidence, c: Config) -> Iterator[Proposal]:
    """Never where clipping is what makes updates small, and none that makes the largest of them too large.

    The default of an optimizer whose steps hardly depend on the size of the gradient, where that is higher.
    """
    if not 0 < e.usual_ratio < SMALL_UPDATE or e.coefficient < 0.5:
        return
    default = usual_rate(c) / c.optimizer.lr if isinstance(c.optimizer, BetasOption) else 0.0
    factor = min(max(TYPICAL_RATIO / e.usual_ratio, default), LARGE_UPDATE / e.largest_ratio)
    if factor > 1:
        of = ", the optimizer's default," * (factor == default)
        yield rate(e, c, factor, f"{moved(e, c)}: this rate{of} makes the median {factor * e.usual_ratio:.2g}")


def too_slow(e: Evidence, c: Config) -> Iterator[Proposal]:
    """Where something is learnt, at updates that are no smaller than usual ones may be; or longer, at this rate."""
    if not (e.found.get("not_learning", {}).get("slow") and e.usual_ratio >= SMALL_UPDATE):
        return
    factor, why = min(10.0, LARGE_UPDATE / e.largest_ratio), f"{moved(e, c)}, and the loss fell to the end"
    if factor >= HIGHER and not e.lowered:
        yield rate(e, c, factor, why)
    else:
        updates = {} if c.trainer.updates is None else {"trainer.updates": LONGER * c.trainer.updates}
        made = {"trainer.epochs": LONGER * c.trainer.epochs, **updates}
        yield setting("trainer.epochs", f"the loss fell to the end: {LONGER} times as long", made)


def smaller_eps(e: Evidence, c: Config) -> Iterator[Proposal]:
    """The default of an optimizer whose own makes its steps too small."""
    times = e.found.get("not_learning", e.found.get("stalled", {})).get("eps")
    if times and hasattr(c.optimizer, "eps"):
        why = f"it is {times:.3g} times a usual element of the gradient, and divides steps by as much"
        yield setting("optimizer.eps", why, {"optimizer.eps": type(c.optimizer).eps})


def from_afar(e: Evidence, c: Config) -> Iterator[Proposal]:
    """Where the loss began far above that of a constant answer, and was still falling towards it."""
    found = e.found.get("not_learning", {})
    if "times" in found:
        why = f"the first losses were {found['times']:.3g} times that of a constant answer, and fell to the end"
        yield rate(e, c, 10.0, f"{why}: ten times the rate")
        if "target_size" in found:  # see `target_scale`
            return
        lines = "subtract the mean of the targets and divide by their spread; or begin with smaller outputs"
        if found.get("classes"):
            lines = "begin with smaller outputs"
            if found.get("shares"):
                lines = f"begin with the logarithms of the classes' shares as the last biases; or {lines}"
        yield code("targets", lines, why)


def other_rates(e: Evidence, c: Config) -> Iterator[Proposal]:
    for factor, word in ((0.1, "a tenth of the learning rate"), (10.0, "ten times the learning rate")):
        if factor < 1 or not excess(e) > FAILED:  # larger ones still would not be likelier
            yield rate(e, c, factor, word)
    if c.optimizer.lr != usual_rate(c):
        why = f"the optimizer's default; it was {c.optimizer.lr:g}"
        yield setting("optimizer.lr", why, {"optimizer.lr": usual_rate(c)})


def warmup(e: Evidence, c: Config) -> Iterator[Proposal]:
    """Where the first updates are the cause: the first was large, later ones not, and the failure began soon after."""
    first, *later = e.ratios or [math.nan]
    if first > LARGE_UPDATE and later and max(later) <= LARGE_UPDATE and (e.until or math.inf) <= warmup_length(e):
        yield from other_warmup(e, c)


def warmup_length(e: Evidence) -> int:
    """A tenth of the run."""
    return min(max(10, e.planned // 10), e.planned // 2)


def other_warmup(e: Evidence, c: Config) -> Iterator[Proposal]:
    """Whatever the cause; none where it failed before any update was applied, or no lower rate would help."""
    updates = warmup_length(e)
    if e.failed_at == 1 or beyond_rates(e, c) or not updates:
        return
    if e.ratios and e.ratios[0] / updates > LARGE_UPDATE:  # the first update would still be too large
        return
    large = bool(e.ratios) and e.ratios[0] > LARGE_UPDATE  # else it is no reason
    first = moves(e.ratios[0], e.ratios[0], 1, 1, scheduled(c)).replace("the one", "the first") if large else ""
    why = ": ".join(filter(None, (first, f"the rate rises over the first {updates} updates")))
    if isinstance(c.schedule, Constant):
        yield setting("schedule=warmup", why, {"schedule": "warmup", "schedule.warmup": updates})
    elif getattr(c.schedule, "warmup", updates) < updates:
        yield setting("schedule.warmup", why, {"schedule.warmup": updates})


def shorter_warmup(e: Evidence, c: Config) -> Iterator[Proposal]:
    """A tenth of the run, where it takes more than half of it."""
    given, updates = getattr(c.schedule, "warmup", 0), max(1, e.planned // 10)
    if 2 * given > e.planned > updates:
        why = f"the rate is reached after {given} updates, and the run has {e.planned}: a tenth of it"
        yield setting("schedule.warmup", why, {"schedule.warmup": updates})


def no_schedule(e: Evidence, c: Config) -> Iterator[Proposal]:
    """No schedule, where it has taken the rate away from most updates."""
    if e.rate < FALLEN and scheduled(c):
        left = f"at most {e.rate:.1g} of the learning rate" if e.rate else "no learning rate"
        why = f"the schedule leaves half of the updates {left}"
        yield setting("schedule=constant", why, {"schedule": "constant"})


def uneven(e: Evidence) -> bool:
    """Whether layers were measured to differ in their gradients, or the whole gradient from update to update."""
    found = {"vanishing", "dominant_layer", "dead_units"} & {*e.found}
    low, high = quantile(e.norms, 0.1), quantile(e.norms, 0.9)
    return bool(found) or e.usual_ratio < SMALL_UPDATE or high > SPREAD * low


def adaptive(e: Evidence, c: Config) -> Iterator[Proposal]:
    """AdamW in place of SGD: layers with little gradient then move as far as the others, unless it is below its eps."""
    least = min(e.found.get("vanishing", {}).get("early", math.inf), e.faintest)
    if isinstance(c.optimizer, SGD) and least > AdamW.eps:
        why = "its steps hardly depend on the size of the gradient; at its usual rate"
        yield setting("optimizer=adamw", why, {"optimizer": "adamw", "optimizer.lr": AdamW.lr})


def optimizers(e: Evidence, c: Config) -> Iterator[Proposal]:
    yield from adaptive(e, c)
    if not isinstance(c.optimizer, SGD):
        yield named("sgd")
