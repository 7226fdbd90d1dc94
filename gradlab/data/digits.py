"""Real scanned digits that need no download: 1,797 of 8x8 pixels, in scikit-learn's wheel.

Alpaydin and Kaynak 1998, UCI Machine Learning Repository.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Optional

import torch

from gradlab.base.option import Invalid, at_least, option
from gradlab.data.base import Data, Splits, check_seed, generator, split_off
from gradlab.data.spec import Spec

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
        at_least(self, samples=1)
        check_seed(self.seed)

    def load(self, device: torch.device) -> Splits:
        images, labels = scanned()
        order = torch.randperm(len(labels), generator=generator(self.seed))
        images, labels = images[order].unsqueeze(1), labels[order]  # (N, 1, 8, 8) in [0, 16], (N,)
        known = images[:-TEST]
        images = (images - known.mean()) / known.std()
        train, test = split_off(images.to(device), labels.to(device), TEST)
        train.inputs, train.targets = train.inputs[: self.samples], train.targets[: self.samples]
        return Splits(train, test, Spec("images", (1, 8, 8), "classes", 10), "digits")


@functools.cache
def scanned() -> tuple[torch.Tensor, torch.Tensor]:
    """Images (N, 8, 8) and their digits (N,), as `sklearn.datasets.load_digits` returns them.

    Read from its file where that is: importing scikit-learn takes a second, and nothing else of it is needed. Once a
    process, since runs of a sweep want the same; nobody may write to them.
    """
    spec = find_spec("sklearn")
    if spec is None or spec.origin is None:
        raise Invalid("", "digits", "needs scikit-learn, which is not installed")
    path = Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz"
    if path.is_file():
        import numpy as np

        table = np.loadtxt(path, delimiter=",")
        rows, digits = table[:, :-1].reshape(-1, 8, 8), table[:, -1]
    else:
        from sklearn.datasets import load_digits

        found = load_digits()
        rows, digits = found.images, found.target
    return torch.from_numpy(rows).float(), torch.from_numpy(digits).long()
