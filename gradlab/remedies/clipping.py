"""Changes of clipping, from the steady norms of the gradient and what clipping leaves of it."""

from __future__ import annotations

import math
from collections.abc import Iterator

from gradlab.config.schema import Config
from gradlab.diagnosis.advice.learning_rate import RECORDS, TYPICAL_RATIO
from gradlab.diagnosis.advice.line import two_digits
from gradlab.diagnosis.advice.max_norm import outlier_fence
from gradlab.diagnosis.update_sizes import LARGE_UPDATE, SMALL_UPDATE
from gradlab.remedies.evidence import Evidence
from gradlab.remedies.learning_rate import TOO_FAR
from gradlab.remedies.proposal import Proposal, setting
from gradlab.update.clip import NoClip
from gradlab.update.sgd import SGD

FEW_TIMES = 3.0
"""Of a bound that a norm must pass: what is clipped by less is hardly another update."""
STARVED = 0.1
"""Relative change of the other layers over that of the dominant one."""


def clip_norm(e: Evidence, c: Config) -> Iterator[Proposal]:
    """At the outliers of the steady norms; without any, where a clipped update of SGD has the usual size.

    So also where usual updates are far too large: a bound that lets them pass changes nothing of that.
    """
    bound = math.nan
    if e.failed_at == 1:  # nothing was applied that could have been smaller
        return
    too_far = len(e.ratios) >= RECORDS and e.usual_ratio > TOO_FAR * TYPICAL_RATIO
    if e.steady and not too_far:
        bound = outlier_fence(e.steady)
        steady = f"{len(e.steady)} gradient norms have a median of {e.usual_norm:.2g}"
        why = f"{steady}, and beyond {two_digits(bound):g} one is an outlier"
    elif isinstance(c.optimizer, SGD) and e.weights > 0:
        bound = TYPICAL_RATIO * e.weights * (1 - c.optimizer.momentum) / c.optimizer.lr
        why = f"with it an update moves the weights, of norm {e.weights:.2g}, by some {TYPICAL_RATIO:g} of that at most"
    elif e.norms and not too_far:
        before = f" before update {e.until}" if e.until else ""
        bound, why = min(e.norms), f"the smallest gradient norm{before} was {min(e.norms):.3g}"
    if 0 < bound < math.inf and e.peak > FEW_TIMES * bound:  # else it would not have acted when it mattered
        yield setting("clip=norm", why, {"clip": "norm", "clip.max_norm": two_digits(bound)})


def looser_clip(e: Evidence, c: Config) -> Iterator[Proposal]:
    """The bound at which usual gradients pass; none where updates are of ordinary size with this one.

    Of SGD, where unclipped gradients tear the weights apart, that at which updates are of the usual size.
    """
    ordinary = e.verdict != "overclipped" and e.usual_ratio >= SMALL_UPDATE
    if isinstance(c.clip, NoClip) or not 0 < e.coefficient < 0.5 or ordinary:
        return
    left = f"clipping leaves {e.coefficient:.2g} of the gradient"
    measured = getattr(c.clip, "norm_type", 2) == 2
    torn = isinstance(c.optimizer, SGD) and e.unclipped > TOO_FAR * LARGE_UPDATE
    if type(c.clip).threshold == "max_norm" and e.norms and measured:
        bounds = {
            outlier_fence(e.steady or e.norms): "beyond {:g} a norm is an outlier",
            10 * e.usual_norm: "{:g} is ten times the usual norm",
        }
        if torn:
            usual = getattr(c.clip, "max_norm", 0.0) * TYPICAL_RATIO / e.usual_ratio
            bounds[usual] = f"at {{:g}} an update would move the weights by {TYPICAL_RATIO:g} of their norm"
        bound = two_digits(min(bounds))
        beyond = bounds[min(bounds)].format(bound)
        yield setting("clip.max_norm", f"{left}; {beyond}", {"clip.max_norm": bound})
    else:
        for name in ("max_norm", "max_value", "factor"):
            if hasattr(c.clip, name):
                bound = two_digits(getattr(c.clip, name) / e.coefficient)
                yield setting(f"clip.{name}", left, {f"clip.{name}": bound})
    if not torn:
        yield setting("clip=none", left, {"clip": "none"})


def clip_per_layer(e: Evidence, c: Config) -> Iterator[Proposal]:
    """Where one layer's gradient makes the clipped updates of the others tiny: a looser bound for all lets it loose."""
    found = e.found.get("dominant_layer", {})
    if not found or not found.get("others", 0.0) < STARVED * found.get("update_ratio", 1.0):
        return
    bound = getattr(c.clip, "max_norm", 1.0)
    why = f"the norm is mostly that of {found.get('layer')}, and clipping the whole leaves the others next to nothing"
    yield setting("clip=per_layer", why, {"clip": "per_layer", "clip.max_norm": bound})
