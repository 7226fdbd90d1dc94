"""CIFAR-10 (Krizhevsky 2009) and MNIST (LeCun et al. 1998), read by torchvision and then kept whole on the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional

import torch

from gradlab.base.option import Invalid, at_least, option
from gradlab.data.base import Data, Splits, TensorSplit
from gradlab.data.spec import Spec


@dataclass
class VisionData(Data):
    """Base of torchvision's sets: images (C, H, W), normalised by the training set's mean and standard deviation."""

    root: str = "data"
    """Folder of the files, as torchvision lays them out."""
    download: bool = False
    """Whether to fetch the files if they are not there."""
    samples: Optional[int] = None
    """Training samples to use, the first ones; null: all."""
    test_samples: Optional[int] = None
    """Test samples to use, the first ones; null: all."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, samples=1, test_samples=1)

    def read(self, option: str, name: str, train: bool) -> Any:
        """torchvision's data set `name`, which has `data` and `targets`."""
        try:
            from torchvision import datasets
        except (ImportError, RuntimeError) as error:  # RuntimeError: built for another PyTorch
            raise Invalid("", option, f"needs torchvision, which does not import: {error}") from error
        title = name.replace("CIFAR", "CIFAR-")
        try:
            return getattr(datasets, name)(self.root, train=train, download=self.download)
        except Exception as error:
            reason = " ".join(str(error).split())
            if self.download:
                raise Invalid("download", True, f"cannot fetch {title}: {reason}") from error
            if isinstance(error, RuntimeError) and "not found" in reason:
                raise Invalid("root", self.root, f"no {title} there; data.download=true fetches it") from error
            raise Invalid("root", self.root, f"{title} there cannot be read: {reason}") from error


@option("data", "cifar10")
@dataclass
class CIFAR10Data(VisionData):
    """CIFAR-10: 50,000 colour photographs (3, 32, 32) of 10 kinds of things to train, 10,000 to test."""

    def load(self, device: torch.device) -> Splits:
        mean = torch.tensor([0.4914, 0.4822, 0.4465], device=device).view(3, 1, 1)
        std = torch.tensor([0.2470, 0.2435, 0.2616], device=device).view(3, 1, 1)
        splits = []
        for train, samples in ((True, self.samples), (False, self.test_samples)):
            found = self.read("cifar10", "CIFAR10", train)
            bytes_ = torch.from_numpy(found.data[:samples]).to(device).permute(0, 3, 1, 2)  # (N, 3, 32, 32)
            images = ((bytes_.float() / 255 - mean) / std).contiguous()
            splits.append(TensorSplit(images, torch.tensor(found.targets[:samples], device=device)))
        return Splits(splits[0], splits[1], Spec("images", (3, 32, 32), "classes", 10), "cifar10")


@option("data", "mnist")
@dataclass
class MNISTData(VisionData):
    """MNIST: 60,000 handwritten digits (1, 28, 28) to train, 10,000 to test."""

    def load(self, device: torch.device) -> Splits:
        splits = []
        for train, samples in ((True, self.samples), (False, self.test_samples)):
            found = self.read("mnist", "MNIST", train)
            images = (found.data[:samples].to(device).float() / 255 - 0.1307) / 0.3081  # (N, 28, 28)
            splits.append(TensorSplit(images.unsqueeze(1), found.targets[:samples].to(device).long()))
        return Splits(splits[0], splits[1], Spec("images", (1, 28, 28), "classes", 10), "mnist")
