"""Pieces that several models share.

B batch, T time steps, F features of a step, D width, C channels, H height, W width of an image
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from gradlab.data.spec import Spec


class SquaredReLU(nn.Module):
    """max(0, x)^2 (So et al. 2021, Primer): trains well; activations grow with the square of the weights."""

    def forward(self, x: Tensor) -> Tensor:
        return x.relu().square()


ACTIVATIONS: dict[str, type[nn.Module]] = {
    "sigmoid": nn.Sigmoid,
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "relu2": SquaredReLU,
}


class Rows(nn.Module):
    """An image as a sequence of its rows, all channels of a row side by side."""

    def forward(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2).flatten(2)  # (B, C, H, W) -> (B, H, C*W)


def num_steps(spec: Spec) -> int:
    """T: the length of the data's sequences."""
    return spec.shape[1] if spec.inputs == "images" else spec.shape[0]


def to_steps(spec: Spec, width: int) -> tuple[nn.Module, int]:
    """The module that turns a batch into (B, T, F), and F; tokens are embedded with the given width."""
    if spec.inputs == "tokens":
        return nn.Embedding(spec.vocabulary, width), width
    if spec.inputs == "images":
        return Rows(), spec.shape[0] * spec.shape[2]
    return nn.Identity(), spec.shape[1]


def answering(x: Tensor, spec: Spec) -> Tensor:
    """The states that the head reads: (B, T, D) -> all of them for targets "tokens", else the last, (B, D)."""
    return x if spec.targets == "tokens" else x[:, -1]


def run(layer: nn.Module, x: Tensor, recompute: bool) -> Tensor:
    """layer(x); with `recompute` by activation checkpointing (Chen et al., arXiv:1604.06174)."""
    again = recompute and torch.is_grad_enabled()
    y: Tensor = checkpoint(layer, x, use_reentrant=False) if again else layer(x)
    return y
