"""Vectors labelled by a random teacher: any size, nothing to download, learnable by construction."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, sqrt

import torch

from gradlab.base.option import at_least, one_of, option, require
from gradlab.data.base import Data, Splits, check_seed, generator, split_off
from gradlab.data.spec import Spec


@option("data", "synthetic")
@dataclass
class SyntheticData(Data):
    """Standard normal vectors (D,); a linear teacher, or a small MLP, returns classes, values of unit variance, or
    counts (Poisson) with such values as the logarithms of their rates."""

    task: str = "classification"
    """classification, regression or counts."""
    features: int = 32
    """D, size of a vector."""
    outputs: int = 10
    """Number of classes, values or counts."""
    hidden: int = 0
    """Units in the hidden layer of the teacher; 0: a linear one."""
    noise: float = 0.0
    """Fraction of labels replaced by random ones, or standard deviation of the noise on the values (of counts: on the
    logarithms); in the training set only."""
    samples: int = 4096
    """Training samples."""
    test_samples: int = 512
    """Test samples; 0: no test set."""
    seed: int = 0
    """Decides the teacher, the vectors and the noise."""

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("task", self.task, ("classification", "regression", "counts"))
        classes = self.task == "classification"
        at_least(self, features=1, outputs=2 if classes else 1, hidden=0, samples=1, test_samples=0)
        fits = 0 <= self.noise <= 1 if classes else 0 <= self.noise < inf
        require(fits, "noise", self.noise, "in [0, 1]" if classes else ">= 0 and finite")
        check_seed(self.seed)

    def load(self, device: torch.device) -> Splits:
        draw, n = generator(self.seed), self.samples + self.test_samples
        inputs = x = torch.randn(n, self.features, generator=draw)  # (N, D)
        if self.hidden:
            x = (x @ torch.randn(self.features, self.hidden, generator=draw) / sqrt(self.features)).tanh() * 1.6
        answers = x @ torch.randn(x.shape[1], self.outputs, generator=draw) / sqrt(x.shape[1])  # (N, K)
        noisy = torch.arange(n) < self.samples
        if self.task == "classification":
            noisy &= torch.rand(n, generator=draw) < self.noise
            targets = torch.where(noisy, torch.randint(self.outputs, (n,), generator=draw), answers.argmax(1))
        else:
            targets = answers + self.noise * torch.randn(n, self.outputs, generator=draw) * noisy[:, None]
        if self.task == "counts":
            targets = torch.poisson(targets.exp(), generator=draw)
        train, test = split_off(inputs.to(device), targets.to(device), self.test_samples)
        asks = "classes" if self.task == "classification" else "values"
        return Splits(train, test, Spec("vectors", (self.features,), asks, self.outputs), "synthetic")
