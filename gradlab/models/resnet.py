"""`model=resnet`: the network is in networks/resnet.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gradlab.base.option import one_of, option, require
from gradlab.data.spec import Spec
from gradlab.models.base import ModelOption, check_fit

if TYPE_CHECKING:
    from torch import nn


@option("model", "resnet")
@dataclass
class ResNetOption(ModelOption):
    """torchvision's ResNet with a stem for small images: a 3x3 convolution of stride 1 and no pooling."""

    usual_data = "digits"
    depth: int = 18
    """Number of weighted layers: 18, 34 or 50."""
    norm: str = "batch"
    """Normalisation after each convolution: batch, group (no statistics over the batch) or none."""
    groups: int = 8
    """Groups of norm=group; must divide the 64 channels of the narrowest layer."""
    residual: bool = True
    """Whether each block adds its input, or a 1x1 convolution of it, to its output."""

    def __post_init__(self) -> None:
        require(self.depth in (18, 34, 50), "depth", self.depth, "one of 18, 34, 50")
        one_of("norm", self.norm, ("batch", "group", "none"))
        require(self.groups >= 1 and 64 % self.groups == 0, "groups", self.groups, "a divisor of 64")

    def build(self, spec: Spec) -> nn.Module:
        check_fit("resnet", spec, ("images",), ("classes", "values"))
        from gradlab.models.networks.resnet import resnet

        return resnet(spec, **vars(self))
