"""The loss and the gradient norm of single samples, by which those of a batch are ranked."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from gradlab.update.gradients import tensor_norms, total_norm
from gradlab.update.loss import Loss

STANDS_OUT = 30.0
"""A sample stands out with a loss or a gradient norm of so many times the usual one; is unlike the others with an
input or target of so many spreads above theirs."""
MOST = 64
"""Samples of a batch that are measured one by one."""
PARTS = 32
"""Parts of a larger batch, of which those with the largest losses are."""

Read = Callable[["torch.Tensor"], tuple[Any, "torch.Tensor"]]


@dataclass
class Sample:
    """A sample of the training set by itself."""

    index: int
    loss: float
    """Mean over what counts in it."""
    grad_norm: float
    outlier: float = 1.0
    """Its loss or gradient norm over the median of those that it was measured with, the larger of both."""
    input: float = math.nan
    """Largest magnitude in its input; NaN where that is not of floats."""
    target: float = math.nan
    odd: float = 0.0
    """How far these lie above those of the others, in their spreads, the larger of both."""

    @property
    def unlike(self) -> bool:
        """Whether it stands out and is far beyond the others before any model has seen it."""
        return self.stands_out and self.odd >= STANDS_OUT

    @property
    def stands_out(self) -> bool:
        return not self.outlier < STANDS_OUT


def ranked(samples: Sequence[Sample], usual: Sequence[Sample] = ()) -> list[Sample]:
    """The samples, the most unusual first. usual: others to compare with."""
    everyone = [*samples, *usual]
    middle = [median([getattr(s, name) for s in everyone]) for name in ("loss", "grad_norm")]
    for s in samples:
        values = zip((s.loss, s.grad_norm), middle, strict=True)
        s.outlier = max(over(abs(value), abs(half)) for value, half in values)
        s.odd = max(above(getattr(s, name), [getattr(o, name) for o in everyone]) for name in ("input", "target"))
    return sorted(samples, key=lambda s: s.outlier, reverse=True)


def outliers(samples: Sequence[Sample]) -> list[Sample]:
    """Those that stand out, by as much as the most unusual or by a hundredth of it. samples: `ranked`."""
    return [s for s in samples if s.stands_out and not s.outlier < samples[0].outlier / 100]


def dominated(samples: Sequence[Sample]) -> bool:
    """Whether those that stand out outweigh all others together, in loss or gradient norm. samples: `ranked`."""
    out = outliers(samples)
    rest = samples[len(out) :]

    def outweigh(name: str) -> bool:
        theirs, others = (math.fsum(abs(getattr(s, name)) for s in part) for part in (out, rest))
        return not math.isfinite(theirs) or theirs > others

    return bool(out) and (outweigh("loss") or outweigh("grad_norm"))


def named(samples: Sequence[Sample]) -> str:
    """The samples that stand out, at most three, or that none does. samples: `ranked`."""
    out = outliers(samples)
    if not out:
        return "no sample of it stands out"
    listed = ", ".join(f"sample {s.index} (loss {s.loss:.3g}, gradient norm {s.grad_norm:.3g})" for s in out[:3])
    more = f" and {len(out) - 3} more" if len(out) > 3 else ""
    return f"of its samples {listed}{more} stand{'s' * (len(out) == 1)} out, {out[0].outlier:.3g} times the usual"


def median(values: list[float]) -> float:
    """NaN counts as infinite."""
    ordered = sorted(math.inf if v != v else v for v in values)
    return ordered[len(ordered) // 2]


def over(value: float, usual: float) -> float:
    """NaN and infinity stand out among finite numbers only."""
    if math.isinf(usual):
        return 1.0
    return math.inf if not math.isfinite(value) else value / usual if usual else math.inf if value else 1.0


def above(value: float, values: list[float]) -> float:
    """By how many robust standard deviations a value is above others, a twentieth of them at least; 0 where unknown."""
    if value != value:
        return 0.0
    middle = median(values)
    spread = max(1.4826 * median([abs(v - middle) for v in values]), 0.05 * abs(middle))
    return (value - middle) / spread if spread else math.inf if value > middle else 0.0


def measured(model: torch.nn.Module, loss: Loss, index: torch.Tensor, read: Read) -> list[Sample]:
    """Each sample by itself, in fp32 and in evaluation mode: (N,) indices; of many, those of the largest losses.

    read: inputs and targets of indices. The caller restores the random state; buffers do not change in this mode.
    """
    training = model.training
    model.eval()
    try:
        if len(index) > MOST:
            index = largest_losses(model, loss, index, read)
        return [one(model, loss, part, read) for part in index.split(1)]
    finally:
        model.train(training)
        model.zero_grad(set_to_none=True)


def largest_losses(model: torch.nn.Module, loss: Loss, index: torch.Tensor, read: Read) -> torch.Tensor:
    """At most MOST of the indices: the parts whose losses are the largest."""
    parts = index.tensor_split(PARTS)
    found: list[float] = []
    with torch.no_grad():
        for part in parts:
            inputs, targets = read(part)
            value = loss.sum(model(inputs), targets).item()
            found.append(math.inf if value != value else value)
    order = sorted(range(PARTS), key=lambda i: found[i], reverse=True)
    return torch.cat([parts[i] for i in order])[:MOST]


def one(model: torch.nn.Module, loss: Loss, index: torch.Tensor, read: Read) -> Sample:
    inputs, targets = read(index)
    params = [p for p in model.parameters() if p.requires_grad]
    with torch.enable_grad():
        value = loss.sum(model(inputs), targets) / loss.count(targets).clamp(min=1)
        slopes = torch.autograd.grad(value, params, allow_unused=True) if value.requires_grad else ()
    norm = total_norm(tensor_norms([s for s in slopes if s is not None], value.device))
    sizes = [t.abs().max().item() if t.is_floating_point() else math.nan for t in (inputs, targets)]
    return Sample(int(index), value.item(), norm.item(), input=sizes[0], target=sizes[1])
