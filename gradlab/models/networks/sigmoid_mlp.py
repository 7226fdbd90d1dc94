"""A deep MLP whose gradients vanish, explode or neither, depending on activation, initialisation and residuals.

Xavier: Glorot and Bengio 2010. He: He et al., arXiv:1502.01852. Orthogonal: Saxe et al., arXiv:1312.6120.

B batch, F features of a sample, D width, V outputs
"""

from __future__ import annotations

from math import prod, sqrt

import torch
from torch import Tensor, nn

from gradlab.data.spec import Spec
from gradlab.models.networks.layers import ACTIVATIONS, run


class Layer(nn.Module):
    """activation(norm(W x + b)), plus x if residual."""

    def __init__(self, features: int, width: int, activation: str, norm: str, bias: bool, residual: bool) -> None:
        super().__init__()
        self.residual = residual
        # Batch norm subtracts any bias: its gradient would be zero, and look like a vanishing one.
        self.linear = nn.Linear(features, width, bias=bias and norm != "batch")
        self.norm = {"none": nn.Identity, "batch": nn.BatchNorm1d, "layer": nn.LayerNorm}[norm](width)
        self.activation = ACTIVATIONS[activation]()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.activation(self.norm(self.linear(x)))  # (B, D)
        return x + y if self.residual else y


class SigmoidMLP(nn.Module):
    """Vectors, images or sequences -> (B, V)."""

    def __init__(
        self,
        spec: Spec,
        *,
        layers: int,
        width: int,
        activation: str,
        init: str,
        gain: float,
        norm: str,
        bias: bool,
        residual: bool,
        activation_checkpointing: bool,
    ) -> None:
        """The fields of `model=sigmoid_mlp` (see gradlab/models/sigmoid_mlp.py)."""
        super().__init__()
        self.recompute = activation_checkpointing
        features = prod(spec.shape)
        self.layers = nn.ModuleList(
            Layer(features if i == 0 else width, width, activation, norm, bias, residual and i > 0)
            for i in range(layers)
        )
        self.head = nn.Linear(width, spec.outputs, bias=bias)
        init_(self, init, gain)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)  # (B, F)
        for layer in self.layers:
            x = run(layer, x, self.recompute and self.training)  # (B, D)
        x = self.head(x)
        return x


@torch.no_grad()
def init_(model: nn.Module, init: str, gain: float) -> None:
    """Initialise every linear layer, the head included.

    A layer of independent weights of std s / sqrt(fan_in) multiplies the signal by about s: too_small (0.1) loses a
    factor of 10 a layer, which 20 layers keep representable in fp32, and too_large (3) saturates or explodes.
    """
    for module in model.modules():
        if isinstance(module, nn.Linear):
            weight = module.weight
            if init == "xavier":
                nn.init.xavier_normal_(weight)
            elif init == "he":
                nn.init.kaiming_normal_(weight, nonlinearity="relu")
            elif init == "orthogonal":
                nn.init.orthogonal_(weight)
            elif init in ("too_small", "too_large"):
                nn.init.normal_(weight, std=(0.1 if init == "too_small" else 3.0) / sqrt(module.in_features))
            if init != "default" and module.bias is not None:
                nn.init.zeros_(module.bias)
            weight.mul_(gain)
