"""Losses as sums and counts, not means: the sum over a window is divided by its count, once.

A mean of the micro-batches' means would be wrong where they are unequal.

B samples, T time steps, C classes, V tokens of a vocabulary, K values
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import inf, log
from typing import Any, ClassVar

import torch

from gradlab.base.option import OPTIONS, Invalid, one_of, option, require
from gradlab.data.base import IGNORE
from gradlab.data.spec import Spec


@dataclass
class Loss:
    """Base of the losses: sum() / count() is the usual mean."""

    reduction: str = field(default="mean", kw_only=True)
    """Gradients of the mean over the window of an update, or of the sum, as in speech recipes: larger by the count.
    Metrics and evaluation report means either way."""

    takes: ClassVar[str] = "targets"
    """What of a batch of the user's own it gets: the targets; "batch", all of it unless it is a pair; or "model", all
    of it always, as the model does."""
    constant_sought: ClassVar[bool] = False
    """Whether its best constant answer is found by minimising it: a function of which nothing else is known."""
    summed = False
    """Whether what is taken as a mean was measured to be a sum over samples."""
    whole_output = False
    """Whether it gets all that a model=custom returns, and not its logits alone."""

    def __post_init__(self) -> None:
        one_of("reduction", self.reduction, ("mean", "sum"))

    def resolve(self, spec: Spec) -> Loss:
        """The loss for this data; raise `Invalid` if they do not fit."""
        raise NotImplementedError

    def __call__(self, outputs: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Sum of the losses, and the number of them."""
        return self.sum(outputs, targets), self.count(targets)

    def sum(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """() float32 whatever the outputs are."""
        raise NotImplementedError

    @property
    def terms(self) -> tuple[str, ...]:
        """Names of the terms that it is a weighted sum of, where it has several."""
        return ()

    @property
    def needs_term_sums(self) -> bool:
        """Whether an update needs `term_sums`: there are several, or only the outputs tell how many losses it has."""
        return False

    def term_sums(self, outputs: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(K,) the sum of the losses of each term, and float64, their numbers: of one, where there is one."""
        return self.sum(outputs, targets).reshape(1), self.count(targets).reshape(1).double()

    def total(self, means: torch.Tensor) -> torch.Tensor:
        """() the loss, of the means of its terms, (K,)."""
        return means.sum()

    def tried(self, model: torch.nn.Module, inputs: Any, outputs: Any, targets: Any) -> None:
        """Look at the model on a batch of two samples, before the run."""

    def filled(self, targets: Any) -> Any:
        """The targets that the model is given, where it takes them."""
        return targets

    def check(self, targets: torch.Tensor) -> None:
        """Raise `Invalid` for targets that the loss does not accept; called once, before the run."""

    def count(self, targets: torch.Tensor) -> torch.Tensor:
        """() int64: the number of losses, known before the forward pass. Does not wait for the device."""
        return full(targets.numel(), targets)

    @property
    def weighting(self) -> str:
        """What is to be said of how micro-batches are weighted, if anything."""
        return ""

    def divisor(self, count: torch.Tensor) -> torch.Tensor | int:
        """What the summed loss of a window with `count` losses is divided by for the gradient."""
        return count if self.reduction == "mean" else 1

    def constant(self, targets: Iterable[torch.Tensor]) -> float | None:
        """Mean loss of the best constant answer; None where it is not known.

        A model that is no better has learnt nothing from its inputs. targets: all of a data set, in pieces.
        """
        return None

    def floor(self, targets: Callable[[], Iterable[torch.Tensor]]) -> float:
        """The lowest mean loss that there can be, as far as known: that of targets that are shares is above zero."""
        return 0.0

    def best_constant(self, split: str, targets: Callable[[], Iterable[torch.Tensor]]) -> float | None:
        """`constant` of a split of the data that this loss was resolved for, computed once."""
        known: dict[str, float | None] = vars(self).setdefault("known_constants", {})
        if split not in known:
            known[split] = self.constant(targets())
        return known[split]

    def correct(self, outputs: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
        """() correct answers and () answers, both int64; None where targets are values."""
        if not isinstance(targets, torch.Tensor) or not isinstance(outputs, torch.Tensor):
            return None
        if targets.is_floating_point() or (outputs := classes_last(outputs, targets)).shape[:-1] != targets.shape:
            return None
        counted = targets != IGNORE
        return ((outputs.argmax(-1) == targets) & counted).sum(), counted.sum()


def class_axis(outputs: torch.Tensor, targets: torch.Tensor) -> int:
    """Where outputs have their classes: 1 of (B, C, H, W) for targets (B, H, W), as PyTorch has them; else the last."""
    first = outputs.shape[:1] + outputs.shape[2:] == targets.shape
    return 1 if first and (targets.dim() > 2 or outputs.shape[:-1] != targets.shape) else -1


def classes_last(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """(..., C) of (B, C, ...)."""
    return outputs.movedim(1, -1) if class_axis(outputs, targets) == 1 else outputs


def full(number: int, like: torch.Tensor) -> torch.Tensor:
    """() int64 on the device; `torch.tensor` would copy it there from the host."""
    return torch.full((), number, dtype=torch.int64, device=like.device)


def at_least_fp32(x: torch.Tensor) -> torch.Tensor:
    """At least fp32: in fp16 and bf16 a sum loses its small terms, and fp16 overflows at 65504."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def fits(name: str, spec: Spec, *targets: str) -> None:
    if spec.targets not in targets:
        raise Invalid("", name, f"needs {' or '.join(targets)}, but the data provides {spec.targets}")


def pair(
    name: str, outputs: torch.Tensor, targets: torch.Tensor, single: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Both in at least fp32 and in one shape; raise `Invalid` where they have two.

    (B, 1) and (B,) would silently broadcast to a loss of B * B pairs. single: the targets are (N,) in the data, and
    (B, 1) here; the model may return either.
    """
    if single and outputs.shape == targets.shape[:1]:
        outputs = outputs.unsqueeze(1)
    if outputs.shape != targets.shape:
        wanted = f"{tuple(targets.shape[:1])} or {tuple(targets.shape)}" if single else f"{tuple(targets.shape)}"
        raise Invalid("loss", name, f"needs outputs of shape {wanted}, but the model returns {tuple(outputs.shape)}")
    return at_least_fp32(outputs), at_least_fp32(targets)


@option("loss", "cross_entropy")
@dataclass
class CrossEntropy(Loss):
    """-log softmax(outputs)[target]: outputs (B, C) for classes (B,), (B, T, V) for tokens (B, T), or (B, C, H, W)."""

    ignore_index: int = IGNORE
    """A target that does not count; -100, the padding, never does."""
    label_smoothing: float = 0.0
    """Probability that is taken from the target and spread over all classes (Szegedy et al., arXiv:1512.00567)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.label_smoothing < 1, "label_smoothing", self.label_smoothing, "in [0, 1)")

    def resolve(self, spec: Spec) -> CrossEntropy:
        fits("cross_entropy", spec, "classes", "tokens")
        self.classes = spec.outputs
        return self

    def padded(self, targets: torch.Tensor) -> torch.Tensor:
        """Targets with IGNORE wherever they do not count."""
        return targets if self.ignore_index == IGNORE else targets.masked_fill(targets == self.ignore_index, IGNORE)

    def sum(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        outputs = classes_last(outputs, targets)
        if outputs.shape[:-1] != targets.shape:
            message = f"needs outputs of shape {(*targets.shape, 'C')}, but the model returns {tuple(outputs.shape)}"
            raise Invalid("loss", "cross_entropy", message.replace("'", ""))
        logits, labels = at_least_fp32(outputs).flatten(0, -2), self.padded(targets).flatten()
        smoothing = self.label_smoothing
        return torch.nn.functional.cross_entropy(
            logits, labels, ignore_index=IGNORE, label_smoothing=smoothing, reduction="sum"
        )

    def count(self, targets: torch.Tensor) -> torch.Tensor:
        return (self.padded(targets) != IGNORE).sum()

    def constant(self, targets: Iterable[torch.Tensor]) -> float | None:
        """The entropy of the classes, in nats; with label smoothing, of what it makes of them."""
        labels = torch.cat([padded[padded != IGNORE] for t in targets for padded in [self.padded(t)]])
        count = labels.bincount(minlength=self.classes if self.label_smoothing else 0)
        share = count.double() / max(labels.numel(), 1)
        share = (1 - self.label_smoothing) * share + self.label_smoothing / len(share) if len(share) else share
        share = share[share > 0]
        return -(share * share.log()).sum().item()

    def floor(self, targets: Callable[[], Iterable[torch.Tensor]]) -> float:
        """The entropy of what label smoothing makes of a class."""
        rest = self.label_smoothing / self.classes if self.label_smoothing else 0.0
        shares = [1 - self.label_smoothing + rest, *[rest] * (self.classes - 1)] if rest else []
        return -sum(share * log(share) for share in shares)

    def correct(self, outputs: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
        return super().correct(outputs, self.padded(targets))


@option("loss", "mse")
@dataclass
class MeanSquaredError(Loss):
    """(unit * (output - target))^2: outputs and targets (B, K), or any (B, ...): each of the values counts."""

    single = False

    unit: float = 1.0
    """One unit of the values in those of the loss: 0.001 for values in millimetres and a loss in square metres."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 < self.unit < inf, "unit", self.unit, "> 0 and finite")

    def resolve(self, spec: Spec) -> MeanSquaredError:
        fits("mse", spec, "values")
        self.single = spec.single
        return self

    def sum(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        outputs, targets = pair("mse", outputs, targets, self.single)
        return (self.unit * (outputs - targets)).square().sum()

    def constant(self, targets: Iterable[torch.Tensor]) -> float | None:
        """The variance of the targets, in the units of the loss."""
        return self.unit**2 * torch.cat(list(targets)).double().var(0, correction=0).mean().item()


@option("loss", "bce")
@dataclass
class BinaryCrossEntropy(Loss):
    """-t log p - (1 - t) log(1 - p) with p = sigmoid(output): outputs and targets t in [0, 1], (B, K) or (B, ...)."""

    single = False

    def resolve(self, spec: Spec) -> BinaryCrossEntropy:
        fits("bce", spec, "values")
        self.single = spec.single
        return self

    def check(self, targets: torch.Tensor) -> None:
        low, high = targets.min().item(), targets.max().item()
        if low < 0 or high > 1:
            raise Invalid("", "bce", f"needs targets in [0, 1], but the data has {low:g} to {high:g}")

    def sum(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        logits, labels = pair("bce", outputs, targets, self.single)
        return torch.nn.functional.binary_cross_entropy_with_logits(logits, labels, reduction="sum")

    def constant(self, targets: Iterable[torch.Tensor]) -> float | None:
        """The entropy of the mean of each target."""
        mean = torch.cat(list(targets)).double().mean(0)
        return torch.nn.functional.binary_cross_entropy(mean, mean).item()

    def floor(self, targets: Callable[[], Iterable[torch.Tensor]]) -> float:
        """The mean entropy of the targets, which is 0 of labels."""
        each = torch.cat(list(targets())).double()
        return torch.nn.functional.binary_cross_entropy(each, each).item()


@option("loss", "auto")
@dataclass
class AutoLoss(Loss):
    """cross_entropy for classes and tokens, mse for values, policy_gradient for returns."""

    def resolve(self, spec: Spec) -> Loss:
        name = {"values": "mse", "returns": "policy_gradient"}.get(spec.targets, "cross_entropy")
        loss: Loss = OPTIONS["loss", name](reduction=self.reduction)
        return loss.resolve(spec)
