"""The adding problem: two numbers, far apart, must be remembered to the end.

Hochreiter and Schmidhuber 1997, section 5.4, in the form of Le, Jaitly, Hinton (arXiv:1504.00941): numbers in [0, 1],
of which the target is the sum.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gradlab.base.option import at_least, option
from gradlab.data.base import Data, Splits, check_seed, generator, split_off
from gradlab.data.spec import Spec


@option("data", "adding")
@dataclass
class AddingData(Data):
    """Sequences (T, 2) of a random number and a mark, one mark in each half; the target (1,) is the marked sum.

    Always answering 1 has a mean squared error of 1/6.
    """

    length: int = 100
    """T, time steps of a sequence."""
    samples: int = 4096
    """Training samples."""
    test_samples: int = 512
    """Test samples; 0: no test set."""
    seed: int = 0
    """Decides the sequences."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, length=2, samples=1, test_samples=0)
        check_seed(self.seed)

    def load(self, device: torch.device) -> Splits:
        draw, n, half = generator(self.seed), self.samples + self.test_samples, self.length // 2
        numbers = torch.rand(n, self.length, generator=draw)
        marks = torch.zeros(n, self.length)
        marks.scatter_(1, torch.randint(0, half, (n, 1), generator=draw), 1.0)
        marks.scatter_(1, torch.randint(half, self.length, (n, 1), generator=draw), 1.0)
        inputs = torch.stack([numbers, marks], dim=2)  # (N, T, 2)
        targets = (numbers * marks).sum(1, keepdim=True)  # (N, 1)
        train, test = split_off(inputs.to(device), targets.to(device), self.test_samples)
        return Splits(train, test, Spec("sequences", (self.length, 2), "values", 1), "adding")
