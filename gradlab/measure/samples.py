"""The loss and the gradient norm of single samples, by which those of a batch are ranked."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
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
TOGETHER = 16
"""Samples of one pass in a search of many: one that stands out outweighs the others in it."""

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
    larger: str = "loss"
    """Which of both that is."""
    input: float = math.nan
    """Largest magnitude in its input; NaN where that is not of floats."""
    target: float = math.nan
    by_weights: bool = False
    """Whether it is finite with other initial weights: what is not finite then is not the sample's."""
    broken: bool = False
    """Whether it is not finite with the weights of the update that failed, of which it is."""
    odd: float = 0.0
    """How far these lie above those of the others, in their spreads, the larger of both."""

    @property
    def unlike(self) -> bool:
        """Whether it stands out and is far beyond the others before any model has seen it."""
        return self.stands_out and self.odd >= STANDS_OUT

    @property
    def ordinary(self) -> bool:
        """Whether its input and its target are known, and it is not unlike the others in them."""
        return not self.unlike and self.input == self.input and self.target == self.target

    @property
    def stands_out(self) -> bool:
        return not self.outlier < STANDS_OUT

    @property
    def fails(self) -> bool:
        """Whether its loss or gradient is not finite, and those of the others are."""
        return self.stands_out and not self.finite and not self.by_weights

    @property
    def finite(self) -> bool:
        return math.isfinite(self.loss) and math.isfinite(self.grad_norm)


def ranked(samples: Sequence[Sample], usual: Sequence[Sample] = ()) -> list[Sample]:
    """The samples, the most unusual first. usual: others to compare with."""
    compare(samples, [*samples, *usual])
    return sorted(samples, key=lambda s: s.outlier, reverse=True)


def compare(samples: Sequence[Sample], others: Sequence[Sample]) -> None:
    """Set how far the samples are from others, themselves among them or not."""
    usual = middles(others)
    known = [(name, [getattr(o, name) for o in others]) for name in ("input", "target")]
    for s in samples:
        s.outlier = outlying(s, usual)
        s.larger = "loss" if over(abs(s.loss), usual[0]) >= s.outlier else "gradient norm"
        s.odd = max(above(getattr(s, name), values) for name, values in known)


def middles(samples: Sequence[Sample]) -> tuple[float, float]:
    """The usual magnitude of a loss, and the usual gradient norm."""
    return abs(median([s.loss for s in samples])), median([s.grad_norm for s in samples])


def outlying(s: Sample, usual: tuple[float, float], times: int = 1) -> float:
    """`Sample.outlier` of the sum of so many."""
    return max(over(times * abs(s.loss), usual[0]), over(times * s.grad_norm, usual[1]) + times - 1)


def outliers(samples: Sequence[Sample]) -> list[Sample]:
    """The samples that stand out, and by no less than a hundredth of the first. samples: `ranked`."""
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
    """The samples that stand out, at most three; nothing where none does, as later it may. samples: `ranked`."""
    out = outliers(samples)
    if not out:
        return ""
    listed = ", ".join(f"sample {s.index} (loss {s.loss:.3g}, gradient norm {s.grad_norm:.3g})" for s in out[:3])
    more = f" and {len(out) - 3} more" if len(out) > 3 else ""
    stands = f"stand{'s' * (len(out) == 1)} out, {'the first ' * (len(out) > 1)}{out[0].outlier:.3g} times"
    stands += f" the usual {out[0].larger}"
    return f"of the samples of that update, measured one by one with the initial weights, {listed}{more} {stands}"


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
    """How many robust standard deviations, at least a twentieth of the median each, it is above others; 0: unknown.

    values: of all, it among them or not. Where most are equal, as labels of two classes are, the spread is that of the
    others that differ: a label of the smaller class is no outlier.
    """
    if value != value:
        return 0.0
    middle = median(values)
    spread = max(1.4826 * median([abs(v - middle) for v in values]), 0.05 * abs(middle))
    if not spread:
        others = [abs(v - middle) for v in values if v != middle]
        if value in values and value != middle:
            others.remove(abs(value - middle))
        spread = median(others) if others else 0.0
    return (value - middle) / spread if spread else math.inf if value > middle else 0.0


def measured(model: torch.nn.Module, loss: Loss, index: torch.Tensor, read: Read) -> list[Sample]:
    """Each sample by itself, in fp32 and in evaluation mode: (N,) indices; of many, those of the largest losses.

    read: inputs and targets of indices. The caller restores the random state; buffers do not change in this mode.
    """
    with evaluating(model), steps_shown(model):
        if len(index) > MOST:
            index = largest_losses(model, loss, index, read)
        return [one(model, loss, part, read) for part in index.split(1)]


def searched(
    model: torch.nn.Module, loss: Loss, index: torch.Tensor, read: Read, usual: Sequence[Sample]
) -> list[Sample]:
    """As `measured`, of many samples those alone that stand out among `usual`, the most unusual first, MOST at most.

    By halving: losses and gradients add up, and a sum of usual ones with a single one that stands out does so, too.
    """
    middle, found = middles(usual), list[Sample]()

    def weighed(part: torch.Tensor) -> tuple[float, int, torch.Tensor, Sample]:
        s = one(model, loss, part, read)
        return -outlying(s, middle, len(part)), int(part[0]), part, s

    with evaluating(model), steps_shown(model):
        waiting = [weighed(part) for part in index.split(TOGETHER)]
        heapify(waiting)
        while waiting and -waiting[0][0] >= STANDS_OUT and len(found) < MOST:
            _, _, part, s = heappop(waiting)
            if len(part) == 1:
                found.append(s)
            else:
                for half in part.tensor_split(2):
                    heappush(waiting, weighed(half))
    compare(found, usual)
    return found


@contextmanager
def evaluating(model: torch.nn.Module) -> Iterator[None]:
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)
        model.zero_grad(set_to_none=True)


@contextmanager
def steps_shown(model: torch.nn.Module) -> Iterator[None]:
    """Context in which a recurrent module is computed operation by operation on CUDA too.

    cuDNN's kernel is one operation of all time steps, and has no backward pass in evaluation mode.
    """
    with ExitStack() as changed:
        if any(isinstance(m, torch.nn.RNNBase) for m in model.modules()):
            changed.callback(setattr, torch.backends.cudnn, "enabled", torch.backends.cudnn.enabled)
            torch.backends.cudnn.enabled = False
        yield


def largest_losses(model: torch.nn.Module, loss: Loss, index: torch.Tensor, read: Read) -> torch.Tensor:
    """At most MOST of the indices: the parts whose losses are the largest."""
    parts = index.tensor_split(PARTS)
    found = [one(model, loss, part, read) for part in parts]
    losses = [s.loss if math.isfinite(s.loss) and math.isfinite(s.grad_norm) else math.inf for s in found]
    order = sorted(range(PARTS), key=losses.__getitem__, reverse=True)
    return torch.cat([parts[i] for i in order])[:MOST]


def one(model: torch.nn.Module, loss: Loss, index: torch.Tensor, read: Read) -> Sample:
    """One sample, or the mean of several under the index of the first."""
    inputs, targets = read(index)
    params = [p for p in model.parameters() if p.requires_grad]
    with torch.enable_grad():
        value = loss.sum(model(inputs), targets) / loss.count(targets).clamp(min=1)
        grads = torch.autograd.grad(value, params, allow_unused=True) if value.requires_grad else ()
    norm = total_norm(tensor_norms([g for g in grads if g is not None], value.device))
    sizes = [t.abs().max().item() if t.is_floating_point() else math.nan for t in (inputs, targets)]
    return Sample(int(index[0]), value.item(), norm.item(), input=sizes[0], target=sizes[1])
