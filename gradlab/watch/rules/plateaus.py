"""Schedules that follow a metric, and lower the learning rate while it improves."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import correlation

FEW = 5
"""Values of a metric from which nothing is concluded."""
ALIKE = 3.0
"""Times that a validation loss and the training loss beside it differ at most."""
GROWN = 1.3
"""Times that an accuracy has grown, and that it is less at first than the errors of who has learnt nothing."""
TENFOLD = 10.0
"""Times that a value has grown which begins at next to nothing: an error does not, of a model that has yet to learn."""
FOLLOWS = 0.9
"""Correlation with the training loss of what improves when that does."""
DECIBEL = 10 / math.log(10)
"""How far a signal-to-noise ratio rises when the squared error falls to 1/e."""
NEARLY = 0.85
"""A share of all that is nearly all of them."""
DISTINCT = 4
"""Values that are multiples of one fraction; of fewer that may be chance."""
MAX_SAMPLES = 20_000
"""The largest validation set of which shares are recognized."""
ROUNDED = 2e-7
"""Relative rounding of a share."""


@dataclass
class Measured:
    """A metric that a schedule was given."""

    metric: float
    loss: float
    """The usual training loss at that time."""
    reduced: bool
    """Whether the learning rate was lowered."""


def contrary(
    mode: str, seen: Sequence[Measured], constant: float | None, most: float = 1.0
) -> Iterator[tuple[str, str]]:
    """At the end: did a schedule lower the rate while its metric improved?

    A metric to be maximised that is close to the training loss, and falls with it, is a loss. One to be minimised of
    which all values are shares of a number of samples, and that rises beyond a half while the loss halves, is an
    accuracy; so is one that would be right less than half as often as a constant answer, while the loss falls below
    that of it, or nearly never wrong while the loss was no better. So is any value within 0 and 1 that begins at next
    to nothing, far below the loss, and ends many times as large: of an error that would be the best model, and of no
    validation loss. Others are told by how they follow the training loss, see `is_score`.

    constant: the least cross-entropy H of a constant answer, which is right in exp(-H) of all at least. most: in so
    many of all it is right.
    """
    seen = seen[next((i for i, each in enumerate(seen) if math.isfinite(each.loss)), 0) :]  # known from an update on
    seen = seen[next((i for i, (_, then) in enumerate(pairwise(seen)) if then.metric != seen[0].metric), 0) :]
    places = [i for i, each in enumerate(seen) if each.reduced][:2]
    if len(seen) < FEW or len(places) < 2 or not all(math.isfinite(v) for m in seen for v in (m.metric, m.loss)):
        return
    sign = 1 if mode == "max" else -1
    earlier = [seen[0].metric, *(m.metric for m in seen[1 : places[0] + 1])]
    better = sign * seen[places[0]].metric < sign * seen[0].metric
    better &= sign * seen[places[1]].metric <= min(sign * v for v in earlier)
    first, last = seen[0], seen[-1]
    share = 100.0 if last.metric > 1 else 1.0
    if not 0 < last.loss < first.loss:
        return
    if mode == "max":
        known = better and all(0 < m.metric < ALIKE * m.loss and m.loss < ALIKE * m.metric for m in seen)
        halved = 0 < 2 * last.metric < first.metric == max(m.metric for m in seen)
        known |= better and halved and follows([(m.metric, m.loss) for m in seen])
    else:
        rose = last.metric > 1.5 * first.metric or 2 * (share - last.metric) < share - first.metric
        known = better and rose and 2 * last.metric > share and 2 * last.loss < first.loss
        if constant is not None and last.loss < constant:
            known |= better and 2 * (share - last.metric) < share * min(0.5, math.exp(-constant))
            known |= constant <= first.loss and GROWN * first.metric < min(last.metric, share * (1 - most))
        known = known and are_shares([m.metric / share for m in seen])
        within = all(0 <= m.metric <= 1 for m in seen)
        known |= better and within and first.metric < min(last.metric / TENFOLD, first.loss / ALIKE)
        known |= better and is_score(seen)
    if known:
        course = f"it went from {first.metric:.4g} to {last.metric:.4g}, the training loss from {first.loss:.4g} to"
        yield "plateau-of-an-improving-metric", f"mode={mode!r}: {course} {last.loss:.4g}"


def is_score(seen: Sequence[Measured]) -> bool:
    """Whether a metric rises from its first value on as the training loss falls, and is one of these: decibels of the
    squared loss, or of the absolute one, far from it; or, of a loss that falls by half, negative at first, beside
    losses that are not; or within 0 and 1, and at last nearly 1. An error that gets worse by overfitting, from the
    first value on, is none of them.
    """
    first, last = seen[0], seen[-1]
    if first.metric > min(m.metric for m in seen) or not follows([(-m.metric, m.loss) for m in seen]):
        return False
    rise = (last.metric - first.metric) / math.log(first.loss / last.loss) / DECIBEL
    far = abs(first.metric) > TENFOLD * first.loss and last.loss < 0.8 * first.loss
    if far and 0.7 < rise < 2.6:  # the absolute loss falls half as far
        return all(m.loss > 0 for m in seen) and follows([(m.metric, -math.log(m.loss)) for m in seen])
    negative = first.metric < 0 and last.metric - first.metric > 0.3 * abs(first.metric)
    nearly = first.metric >= 0 and NEARLY < last.metric <= 1 and 2 * (1 - last.metric) < 1 - first.metric
    return 2 * last.loss < first.loss and (negative or (nearly and all(m.metric <= 1 for m in seen)))


def follows(pairs: Sequence[tuple[float, float]]) -> bool:
    one, two = zip(*pairs, strict=True) if pairs else ((), ())
    return min(len(set(one)), len(set(two))) > 1 and correlation(one, two) > FOLLOWS


def are_shares(values: Sequence[float]) -> bool:
    """Whether all of them are multiples of one fraction, as shares of a number of samples are."""
    if not all(0 <= v <= 1 for v in values) or len(set(values)) < DISTINCT:
        return False
    return any(all(abs(v * n - round(v * n)) <= ROUNDED * n for v in values) for n in range(2, MAX_SAMPLES))
