"""The format of batches: which part of one are the inputs, and which the targets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Optional

import torch

from gradlab.base.option import Invalid
from gradlab.data.spec import Spec

LABELS = ("labels", "targets", "target", "label")
DIMENSIONS = {"tokens": 1, "vectors": 1, "sequences": 2, "images": 3}
INTEGER = ("tokens", "classes")


@dataclass
class BatchFormat:
    """Takes inputs and targets from a pair; or from a mapping the targets under one key and, as inputs, the rest."""

    inputs: Optional[str] = None
    """Kind of the inputs; null: by shape and type, "batch" where they are not one tensor of a known kind."""
    targets: Optional[str] = None
    """Kind of the targets; null: by shape and type."""
    labels: Optional[str] = None
    """Key of the targets in a mapping; null: the first of LABELS that it has."""
    takes: str = "targets"
    """What the loss gets: the targets, or the whole batch where it is no pair ("batch"); or the model all of it."""
    filled: Callable[[Any], Any] = lambda targets: targets
    """Makes the targets that the model is given where it takes all of a batch."""

    def __call__(self, batch: Any) -> tuple[Any, Any]:
        """Inputs and targets of a batch."""
        inputs, targets = self.parts(batch)
        if self.takes == "model":
            return self.with_targets(batch, targets), batch if targets is None else targets
        if self.takes == "batch" and not is_pair(batch):
            return inputs, batch
        if not isinstance(targets, torch.Tensor):
            return as_kind(inputs, self.inputs or "batch"), targets
        targets = as_kind(targets, self.targets or kind_of_targets(targets))
        return as_kind(inputs, self.inputs or "batch"), targets

    def with_targets(self, batch: Any, targets: Any) -> Any:
        """The whole batch, with the targets that the model may be given."""
        if is_pair(batch):
            return batch[0], self.filled(targets)
        if isinstance(batch, Mapping):
            return {name: self.filled(value) if value is targets else value for name, value in batch.items()}
        return batch

    def parts(self, batch: Any) -> tuple[Any, Any]:
        """Inputs and targets as they are; None where there are no targets."""
        if is_pair(batch):
            return batch[0], batch[1]
        if isinstance(batch, Mapping):
            key = self.labels or next((name for name in LABELS if name in batch), None)
            if self.labels is not None and key not in batch:
                raise Invalid("data.labels", key, f"is no key of a batch, which has {', '.join(map(str, batch))}")
            return {name: value for name, value in batch.items() if name != key}, batch.get(key)
        return batch, None

    def infer_spec(self, batch: Any, outputs: int) -> Spec:
        """The shapes of the data, from its first batch, whose kinds all later batches are given too."""
        x, y = self.parts(batch)
        self.inputs = self.inputs or kind_of_inputs(x)
        if isinstance(y, torch.Tensor):
            self.targets = self.targets or kind_of_targets(y)
        shape = tuple(x.shape[1:]) if isinstance(x, torch.Tensor) else ()
        vocabulary = outputs if self.inputs == "tokens" else 0
        if isinstance(y, torch.Tensor) and self.targets == "values":
            return Spec(self.inputs, shape, "values", y.shape[1:].numel(), vocabulary, single=y.dim() == 1)
        return Spec(self.inputs, shape, self.targets or "batch", outputs, vocabulary)


def is_pair(batch: Any) -> bool:
    return isinstance(batch, tuple | list) and len(batch) == 2


def kind_of_inputs(x: Any) -> str:
    """tokens of integers (T,), vectors of floats (D,), sequences (T, F), images (C, H, W); batch: anything else."""
    if not isinstance(x, torch.Tensor):
        return "batch"
    kinds = {1: "vectors" if x.is_floating_point() else "tokens", 2: "sequences", 3: "images"}
    return kinds.get(x.dim() - 1, "batch")


def kind_of_targets(y: torch.Tensor) -> str:
    """values of floats, of any shape; classes of one integer, tokens of many."""
    return "values" if y.is_floating_point() else "classes" if y.dim() == 1 else "tokens"


def as_kind(value: Any, kind: str) -> Any:
    """int64 for tokens and classes, float32 for other known kinds; values of (N,) as (N, 1)."""
    if not isinstance(value, torch.Tensor) or kind == "batch":
        return value
    if kind in INTEGER:
        return value.long()
    return value.float().unsqueeze(1) if kind == "values" and value.dim() == 1 else value.float()
