"""torchvision's ResNet (He et al., arXiv:1512.03385) with the stem that the paper uses on CIFAR-10's small images.

Group norm: Wu and He, arXiv:1803.08494.

B batch, C channels, H height, W width of an image, V outputs: (B, C, H, W) -> (B, V)
"""

from __future__ import annotations

from functools import partial

from torch import nn
from torchvision import models

from gradlab.models.options import ResNetOptions
from gradlab.models.spec import Spec


def resnet(options: ResNetOptions, spec: Spec) -> nn.Module:
    """Build the network of the given depth; parameters keep torchvision's names."""
    norm = {
        "batch": nn.BatchNorm2d,
        "group": partial(nn.GroupNorm, options.groups),
        "none": nn.Identity,
    }[options.norm]
    network = getattr(models, f"resnet{options.depth}")(norm_layer=norm, num_classes=spec.outputs)
    network.conv1 = nn.Conv2d(spec.shape[0], 64, kernel_size=3, padding=1, bias=False)  # (B, 64, H, W)
    nn.init.kaiming_normal_(network.conv1.weight, mode="fan_out", nonlinearity="relu")
    network.maxpool = nn.Identity()
    for module in network.modules():
        if isinstance(module, nn.ReLU):
            module.inplace = False  # hooks that watch a norm's output would see it overwritten
    return network
