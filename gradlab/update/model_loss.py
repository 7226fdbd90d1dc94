"""The loss that a model computes itself, as Hugging Face's do where they are given labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Optional

import torch

from gradlab.base.option import Invalid, one_of, option
from gradlab.data.base import IGNORE
from gradlab.data.spec import Spec
from gradlab.data.tree import leaves, mapped, samples
from gradlab.update.loss import Loss, at_least_fp32, full

EXACT = 1e-4
"""Relative difference between the loss of a batch and that of its parts, below which a weighting is exact."""
COUNTED = {"labels": "labels", "next_labels": "labels after the first of each sample", "samples": "samples"}


@option("loss", "model")
@dataclass
class ModelLoss(Loss):
    """The `loss` in what the model returns for a whole batch, labels included: a mean over what it counts.

    Auxiliary terms in it are kept. Needs streamed data.
    """

    counts: Optional[str] = None
    """What the mean is over, by which micro-batches are weighted: labels (that are not -100), next_labels (not the
    first of a sample, as in causal language models) or samples; null: measured on a batch and its parts."""

    takes: ClassVar[str] = "model"
    whole_output = True
    exact = True
    made = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.counts is not None:
            one_of("counts", self.counts, tuple(COUNTED))

    def resolve(self, spec: Spec) -> ModelLoss:
        if spec.inputs != "batch":
            raise Invalid("", "model", "needs data=custom that is streamed: data.stream=true")
        return self

    @property
    def weighting(self) -> str:
        by = f"loss=model: its best constant answer is not known; micro-batches are weighted by their {self.counted_by}"
        return by if self.exact else f"{by}, though the loss is no mean over these alone: exact as far as it is"

    @property
    def counted_by(self) -> str:
        return COUNTED[self.counts or "samples"]

    def sum(self, outputs: Any, targets: Any) -> torch.Tensor:
        return at_least_fp32(loss_of(outputs)) * self.count(targets)

    def count(self, targets: Any) -> torch.Tensor:
        return self.counted(self.counts, targets)

    def counted(self, what: str | None, targets: Any) -> torch.Tensor:
        """() int64, so much of it as there is in a batch."""
        if not isinstance(targets, torch.Tensor) or what in (None, "samples") or targets.is_floating_point():
            return full(samples(targets), next(leaves(targets)))
        return (targets[:, 1:] if what == "next_labels" else targets).ne(IGNORE).sum()

    def filled(self, targets: Any) -> Any:
        """Labels that count nothing with one that does: a mean of nothing is NaN, and its gradient times 0, too."""
        if not isinstance(targets, torch.Tensor) or targets.is_floating_point():
            return targets
        made = targets.clone()
        last = made.flatten()[-1]
        made.view(-1)[-1] = torch.where(self.count(targets) > 0, last, last.clamp(min=0))
        self.made = made
        return made

    def tried(self, model: torch.nn.Module, inputs: Any, outputs: Any, targets: Any) -> None:
        """Measure what the mean is over, where there are labels of several steps: the first step of one sample counts.

        inputs, targets: of two samples.
        """
        if self.counts is not None:
            return
        self.counts = "labels" if isinstance(targets, torch.Tensor) else "samples"
        if self.counts == "samples" or targets.is_floating_point() or targets.dim() != 2 or min(targets.shape) < 2:
            return
        labels = torch.full_like(targets[:2], IGNORE)
        labels[0, 0], labels[:, -1] = targets[0, 0].clamp(min=0), targets[:2, -1].clamp(min=0)
        given = mapped(lambda t: labels if t is self.made else t, inputs)  # the tokens may equal the labels

        def mean(part: slice) -> float:
            cut = mapped(lambda t: t[part] if t.dim() and len(t) == len(targets) else t, given)
            return loss_of(model(cut)).item()

        whole, parts, off = mean(slice(0, 2)), (mean(slice(0, 1)), mean(slice(1, 2))), {}
        for what in COUNTED:
            n = [int(self.counted(what, labels[i : i + 1])) for i in range(2)]
            off[what] = abs(whole - (n[0] * parts[0] + n[1] * parts[1]) / sum(n))
        self.counts = min(off, key=lambda what: off[what])
        self.exact = off[self.counts] <= EXACT * max(abs(whole), 1.0)


def loss_of(outputs: Any) -> torch.Tensor:
    """The loss in what a model returns: its `loss`, or the only number among its outputs."""
    found = outputs.get("loss") if isinstance(outputs, Mapping) else getattr(outputs, "loss", None)
    if found is None:
        numbers = [t for t in leaves(outputs) if not t.dim()]
        found = numbers[0] if len(numbers) == 1 else None
    if not isinstance(found, torch.Tensor) or found.numel() != 1:
        what = f"returned {type(outputs).__name__} without a loss: does forward() take the labels of the batch?"
        raise Invalid("loss", "model", f"the model {what}")
    return found.reshape(())
