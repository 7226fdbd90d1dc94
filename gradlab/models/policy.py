"""`model=policy`: the network is in networks/policy.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gradlab.base.option import at_least, one_of, option
from gradlab.data.spec import Spec
from gradlab.models.base import ModelOption, check_fit

if TYPE_CHECKING:
    from torch import nn


@option("model", "policy")
@dataclass
class PolicyOption(ModelOption):
    """An MLP from observations to the probabilities of actions, which plays the episodes that it learns from."""

    usual_data = "episodes"
    layers: int = 1
    """Number of hidden layers, before the linear head."""
    width: int = 64
    """Units of a hidden layer."""
    activation: str = "tanh"
    """Activation: sigmoid, tanh, relu or gelu."""

    def __post_init__(self) -> None:
        at_least(self, layers=1, width=1)
        one_of("activation", self.activation, ("sigmoid", "tanh", "relu", "gelu"))

    def build(self, spec: Spec) -> nn.Module:
        check_fit("policy", spec, ("episodes",), ("returns",))
        from gradlab.models.networks.policy import Policy

        return Policy(spec, **vars(self))
