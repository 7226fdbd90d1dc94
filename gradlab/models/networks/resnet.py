"""torchvision's ResNet (He et al., arXiv:1512.03385) with the stem that the paper uses on CIFAR-10's small images.

Group norm: Wu and He, arXiv:1803.08494.

B batch, C channels, H height, W width of an image, V outputs: (B, C, H, W) -> (B, V)
"""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor, nn
from torchvision import models
from torchvision.models.resnet import BasicBlock, Bottleneck

from gradlab.data.spec import Spec


class PlainBlock(BasicBlock):  # type: ignore[misc]  # torchvision is not typed
    """The two convolutions without the residual connection."""

    def __init__(self, inplanes: int, planes: int, stride: int = 1, downsample: Any = None, *a: Any, **k: Any) -> None:
        super().__init__(inplanes, planes, stride, None, *a, **k)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.relu(self.bn2(self.conv2(x)))
        return x


class PlainBottleneck(Bottleneck):  # type: ignore[misc]
    """The three convolutions without the residual connection."""

    def __init__(self, inplanes: int, planes: int, stride: int = 1, downsample: Any = None, *a: Any, **k: Any) -> None:
        super().__init__(inplanes, planes, stride, None, *a, **k)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.relu(self.bn2(self.conv2(x)))
        x = self.relu(self.bn3(self.conv3(x)))
        return x


BLOCKS: dict[int, tuple[Any, Any, list[int]]] = {
    18: (BasicBlock, PlainBlock, [2, 2, 2, 2]),
    34: (BasicBlock, PlainBlock, [3, 4, 6, 3]),
    50: (Bottleneck, PlainBottleneck, [3, 4, 6, 3]),
}
"""Of each depth: the block, the same without residual, and how many there are in each of four stages."""


def resnet(spec: Spec, *, depth: int, norm: str, groups: int, residual: bool) -> nn.Module:
    """The network of `model=resnet` (gradlab/models/resnet.py); parameters keep torchvision's names."""
    norms = {"batch": nn.BatchNorm2d, "group": partial(nn.GroupNorm, groups), "none": nn.Identity}
    block, plain, stages = BLOCKS[depth]
    network: nn.Module = models.ResNet(block if residual else plain, stages, spec.outputs, norm_layer=norms[norm])
    network.conv1 = nn.Conv2d(spec.shape[0], 64, kernel_size=3, padding=1, bias=False)  # (B, 64, H, W)
    nn.init.kaiming_normal_(network.get_parameter("conv1.weight"), mode="fan_out", nonlinearity="relu")
    network.maxpool = nn.Identity()
    for module in network.modules():
        if isinstance(module, nn.ReLU):
            module.inplace = False  # hooks on the norm before it would see its output overwritten
    return network
