"""Four losses as textbooks write them, each of which can become non-finite, and their stable forms.

B samples, C classes, K values
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch

from gradlab.base.option import Invalid, one_of, option
from gradlab.data.spec import Spec
from gradlab.update.loss import Loss, at_least_fp32, fits, pair

FLOOR = 0.25
"""Smallest magnitude of a prediction that the stable relative error divides by."""
LOW = -20.0
"""Below this softplus(x) is exp(x) to rounding, and its logarithm x."""


def naive_log(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """-log(softmax(z)[t]), (B, C) and (B,) -> (B,): infinite once another logit leads by 104, where fp32's exp is 0."""
    return -logits.softmax(-1).gather(-1, targets[:, None]).log()[:, 0]


def stable_log(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The same from the logits: logsumexp(z) - z[t]."""
    return torch.nn.functional.cross_entropy(logits, targets, reduction="none")


def naive_division(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """((p - t) / p)^2: infinite, or NaN with t = 0, for a prediction p = 0."""
    return ((outputs - targets) / outputs).square()


def stable_division(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The same where |p| >= FLOOR, and divided by FLOOR below. Adding to p instead would only move the pole."""
    return ((outputs - targets) / outputs.abs().clamp(min=FLOOR)).square()


def naive_sqrt(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """sqrt((p - t)^2): finite, but for p = t its derivative is inf * 0, which is NaN."""
    return (outputs - targets).square().sqrt()


def stable_sqrt(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """|p - t|, whose derivative PyTorch sets to 0 for p = t."""
    return (outputs - targets).abs()


def naive_exp(outputs: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """-log Poisson(n; rate exp(x)) = exp(x) - n x, less a constant: fp32's exp is infinite beyond 88.7."""
    return outputs.exp() - counts * outputs


def stable_exp(outputs: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """The same likelihood with rate softplus(x), which grows as x and not as its exponential."""
    log_rate = torch.nn.functional.softplus(outputs.clamp(min=LOW)).log() + (outputs - LOW).clamp(max=0.0)
    return torch.nn.functional.softplus(outputs) - counts * log_rate


class Kind(NamedTuple):
    """A loss of each sample or value, in its textbook and its stable form; and the targets that it takes."""

    naive: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    stable: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    targets: str


KINDS = {
    "log": Kind(naive_log, stable_log, "classes"),
    "division": Kind(naive_division, stable_division, "values"),
    "sqrt": Kind(naive_sqrt, stable_sqrt, "values"),
    "exp": Kind(naive_exp, stable_exp, "values"),
}


@option("loss", "unstable")
@dataclass
class UnstableLoss(Loss):
    """A loss that is correct as a formula and unstable in floating point; or, with stable=true, its stable form."""

    kind: str = "log"
    """log: -log(softmax); division: squared relative error; sqrt: root of a square; exp: Poisson with rate exp."""
    stable: bool = False
    """Whether to use the stable form, which is finite for finite arguments."""

    constant_sought: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("kind", self.kind, tuple(KINDS))

    def resolve(self, spec: Spec) -> UnstableLoss:
        fits(f"unstable (kind={self.kind})", spec, KINDS[self.kind].targets)
        return self

    def check(self, targets: torch.Tensor) -> None:
        if self.kind == "exp" and (low := targets.min().item()) < 0:
            raise Invalid("", "unstable (kind=exp)", f"needs targets >= 0, but the data has {low:g}")

    def sum(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        kind = KINDS[self.kind]
        if kind.targets == "values":
            outputs, targets = pair("unstable", outputs, targets)
        return (kind.stable if self.stable else kind.naive)(at_least_fp32(outputs), targets).sum()
