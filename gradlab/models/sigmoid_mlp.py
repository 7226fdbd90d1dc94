"""`model=sigmoid_mlp`: the network is in networks/sigmoid_mlp.py."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from gradlab.base.option import at_least, one_of, option, require
from gradlab.data.spec import Spec
from gradlab.models.base import ModelOption, check_fit

if TYPE_CHECKING:
    from torch import nn


@option("model", "sigmoid_mlp")
@dataclass
class SigmoidMLPOption(ModelOption):
    """An MLP; gradients vanish in a deep one with sigmoids. Images and sequences are flattened."""

    usual_data = "digits"
    layers: int = 3
    """Number of hidden layers, before the linear head."""
    width: int = 64
    """Units of a hidden layer."""
    activation: str = "sigmoid"
    """Activation: sigmoid, tanh, relu or gelu."""
    init: str = "default"
    """PyTorch's own (default), or zero biases and orthogonal weights (orthogonal), or normal ones with variance
    2 / (fan_in + fan_out) (xavier), 2 / fan_in (he), 0.01 / fan_in (too_small) or 9 / fan_in (too_large)."""
    gain: float = 1.0
    """Factor on every initial weight matrix, whatever the init."""
    norm: str = "none"
    """Normalisation before the activation: none, batch or layer."""
    bias: bool = True
    """Whether linear layers, the head's too, have biases; before norm=batch there is none either way."""
    residual: bool = False
    """Whether each hidden layer from the second on adds its input to its output."""
    activation_checkpointing: bool = False
    """Whether hidden layers are computed again in the backward pass instead of keeping their activations."""

    def __post_init__(self) -> None:
        at_least(self, layers=1, width=1)
        one_of("activation", self.activation, ("sigmoid", "tanh", "relu", "gelu"))
        one_of("init", self.init, ("default", "xavier", "he", "orthogonal", "too_small", "too_large"))
        require(0 < self.gain < inf, "gain", self.gain, "> 0")
        one_of("norm", self.norm, ("none", "batch", "layer"))
        once = not (self.activation_checkpointing and self.norm == "batch")
        require(once, "activation_checkpointing", True, "false with norm=batch: its statistics would be updated twice")

    def build(self, spec: Spec) -> nn.Module:
        check_fit("sigmoid_mlp", spec, ("vectors", "images", "sequences"), ("classes", "values"))
        from gradlab.models.networks.sigmoid_mlp import SigmoidMLP

        return SigmoidMLP(spec, **vars(self))
