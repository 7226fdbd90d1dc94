"""Real scanned digits that every machine has: 1,797 of 8x8 pixels, in scikit-learn's wheel.

Alpaydin and Kaynak 1998, UCI Machine Learning Repository.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

import torch

from gradlab.data.base import Data, Splits, at_least, check_seed, generator, split_off
from gradlab.models.spec import Spec
from gradlab.option import Invalid, option

TEST = 360


@option("data", "digits")
@dataclass
class DigitsData(Data):
    """Scikit-learn's digits as images (1, 8, 8) of mean 0 and standard deviation 1; 1,437 to train, 360 to test."""

    samples: Optional[int] = None
    """Training samples to use; null: all 1,437."""
    seed: int = 0
    """Decides which digits are in the test set."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("samples", self.samples, 1)
        check_seed(self.seed)

    def load(self, device: torch.device) -> Splits:
        try:
            from sklearn.datasets import load_digits
        except ImportError as error:
            raise Invalid("", "digits", f"needs scikit-learn, which does not import: {error}") from error

        digits = load_digits()
        order = torch.randperm(len(digits.target), generator=generator(self.seed))
        images = torch.from_numpy(digits.images).float()[order].unsqueeze(1)  # (N, 1, 8, 8) in [0, 16]
        labels = torch.from_numpy(digits.target).long()[order]  # (N,)
        known = images[:-TEST]
        images = (images - known.mean()) / known.std()
        train, test = split_off(images.to(device), labels.to(device), TEST)
        train.inputs, train.targets = train.inputs[: self.samples], train.targets[: self.samples]
        return Splits(train, test, Spec("images", (1, 8, 8), "classes", 10), "digits")
