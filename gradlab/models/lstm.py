"""`model=lstm`: the network is in networks/lstm.py."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from gradlab.base.option import at_least, one_of, option, require
from gradlab.data.spec import Spec
from gradlab.models.base import ANSWERS, STEPS, ModelOption, check_fit

if TYPE_CHECKING:
    from torch import nn


@option("model", "lstm")
@dataclass
class LSTMOption(ModelOption):
    """A recurrent network; an image is read as a sequence of its rows."""

    usual_data = "text"
    cell: str = "lstm"
    """Recurrent cell: lstm, gru or rnn (Elman)."""
    layers: int = 1
    """Number of stacked recurrent layers."""
    width: int = 64
    """Size of the hidden state, and of the embedding where inputs are tokens."""
    nonlinearity: str = "tanh"
    """Nonlinearity of cell=rnn: tanh or relu; the other cells have their own (tanh)."""
    dropout: float = 0.0
    """Probability of dropping an element of a layer's output."""
    init: str = "default"
    """PyTorch's own (default), or orthogonal recurrent and Xavier input weights per gate, zero biases (orthogonal)."""
    gain: float = 1.0
    """Factor on the initial recurrent weights; with init=orthogonal each gate's W W^T is gain^2 I."""
    forget_bias: float | None = None
    """Initial bias of an LSTM's forget gate (the sum of PyTorch's two); null leaves it to init."""

    def __post_init__(self) -> None:
        one_of("cell", self.cell, ("lstm", "gru", "rnn"))
        at_least(self, layers=1, width=1)
        one_of("nonlinearity", self.nonlinearity, ("tanh", "relu"))
        fits = self.nonlinearity == "tanh" or self.cell == "rnn"
        require(fits, "nonlinearity", self.nonlinearity, f"tanh with cell={self.cell}")
        require(0 <= self.dropout < 1, "dropout", self.dropout, "in [0, 1)")
        one_of("init", self.init, ("default", "orthogonal"))
        require(0 < self.gain < inf, "gain", self.gain, "> 0")
        fits = self.forget_bias is None or self.cell == "lstm"
        require(fits, "forget_bias", self.forget_bias, f"null with cell={self.cell}, which has no forget gate")
        fits = self.forget_bias is None or -inf < self.forget_bias < inf
        require(fits, "forget_bias", self.forget_bias, "a finite number or null")

    def build(self, spec: Spec) -> nn.Module:
        check_fit("lstm", spec, STEPS, ANSWERS)
        from gradlab.models.networks.lstm import Recurrent

        return Recurrent(spec, **vars(self))
