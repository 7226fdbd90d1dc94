"""What the trainer needs of a data set: two splits on the device, and the shapes in them.

N samples of a split, B of them in a batch, T time steps
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import torch

from gradlab.base.option import at_least, require
from gradlab.data.spec import Spec

IGNORE = -100
"""A target that does not count, such as padding; PyTorch's own default."""


class Split(Protocol):
    """Samples on the device, or a stream of them."""

    @property
    def device(self) -> torch.device:
        """Where the samples are, and where an index must be."""

    def __len__(self) -> int:
        """Number of samples."""

    def batch(self, index: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and targets of the samples `index` (B,), int64 on the device."""


@dataclass
class TensorSplit:
    """Samples that are rows of two tensors."""

    inputs: torch.Tensor  # (N, ...)
    targets: torch.Tensor  # (N, ...)

    @property
    def device(self) -> torch.device:
        return self.inputs.device

    def __len__(self) -> int:
        return self.inputs.shape[0]

    def batch(self, index: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.inputs.index_select(0, index), self.targets.index_select(0, index)


@dataclass
class TokenSplit:
    """Samples that are windows of one long text: inputs (B, T), and the next token of each as targets (B, T)."""

    tokens: torch.Tensor  # (L,) integers
    starts: torch.Tensor  # (N,) first token of each window; it needs length + 1
    length: int  # T
    lengths: torch.Tensor | None = None  # (N,) tokens that count in each window; the rest is padding

    @property
    def device(self) -> torch.device:
        return self.tokens.device

    def __len__(self) -> int:
        return self.starts.shape[0]

    def batch(self, index: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        steps = torch.arange(self.length + 1, device=self.tokens.device)
        text = self.tokens[self.starts[index, None] + steps].long()  # (B, T+1)
        inputs, targets = text[:, :-1], text[:, 1:]
        if self.lengths is not None:
            padding = steps[:-1] >= self.lengths[index, None]  # (B, T)
            inputs, targets = inputs.masked_fill(padding, 0), targets.masked_fill(padding, IGNORE)
        return inputs, targets


@dataclass
class Remaining:
    """A split without some of its samples, which keep their order."""

    whole: Split
    kept: torch.Tensor  # (N,) int64, places in the whole

    @property
    def device(self) -> torch.device:
        return self.whole.device

    def __len__(self) -> int:
        return self.kept.shape[0]

    def batch(self, index: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.whole.batch(self.kept[index])


@dataclass
class Splits:
    """A loaded data set."""

    train: Split
    test: Split | None
    spec: Spec
    name: str = "custom"
    """Its name in error messages."""
    notes: list[str] = field(default_factory=list)
    """What a run says of its data as it begins."""


@dataclass
class Data:
    """Base of the data sets."""

    batch_size: int = 32
    """Samples of a micro-batch: what one rank puts through the model in one forward pass."""
    drop_last: bool = field(default=False, kw_only=True)
    """Leave out the samples that do not fill the last micro-batch (of all ranks) of an epoch; in each epoch others."""
    without: list[int] = field(default_factory=list, kw_only=True)
    """Training samples that are left out, by their places in the set, counted from 0."""

    def __post_init__(self) -> None:
        at_least(self, batch_size=1)

    def without_excluded(self, train: Split) -> Split:
        """A training set without the samples that `without` names."""
        if not self.without:
            return train
        inside = all(0 <= i < len(train) for i in self.without)
        require(inside, "without", list(self.without), f"places in the training set, 0 to {len(train) - 1}")
        kept = torch.ones(len(train), dtype=torch.bool)
        kept[list(self.without)] = False
        require(bool(kept.any()), "without", list(self.without), "less than all of the training set")
        return Remaining(train, kept.nonzero()[:, 0].to(train.device))

    def load(self, device: torch.device) -> Splits:
        """Read or generate the data on the device; raise `Invalid` where it is missing or unusable."""
        raise NotImplementedError


def check_seed(seed: int) -> None:
    require(0 <= seed < 2**31, "seed", seed, "in [0, 2^31)")


def generator(seed: int) -> torch.Generator:
    """On the CPU, so that the data is the same whatever the device."""
    return torch.Generator().manual_seed(seed)


def split_off(inputs: torch.Tensor, targets: torch.Tensor, test: int) -> tuple[TensorSplit, TensorSplit | None]:
    """Training split and test split, the last `test` samples; None without any."""
    cut = inputs.shape[0] - test
    return TensorSplit(inputs[:cut], targets[:cut]), TensorSplit(inputs[cut:], targets[cut:]) if test else None
