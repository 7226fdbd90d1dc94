"""Recurrent networks: LSTM (Hochreiter and Schmidhuber 1997), GRU (Cho et al., arXiv:1406.1078) and Elman's RNN.

Orthogonal recurrent weights: Saxe et al., arXiv:1312.6120. Forget bias: Jozefowicz et al. 2015.

B batch, T time steps, F features of a step, D width, V outputs
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from gradlab.data.spec import Spec
from gradlab.models.layers import answering, to_steps
from gradlab.models.options import LSTMOptions


class Recurrent(nn.Module):
    """Tokens (B, T), sequences (B, T, F) or images -> (B, T, V) for targets "tokens", else the last step's (B, V)."""

    def __init__(self, options: LSTMOptions, spec: Spec) -> None:
        super().__init__()
        self.spec = spec
        self.embedding, features = to_steps(spec, options.width)
        cell: Any = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}[options.cell]
        nonlinearity = {"nonlinearity": options.nonlinearity} if options.cell == "rnn" else {}
        between = options.dropout if options.layers > 1 else 0.0  # PyTorch warns where there is no next layer
        self.rnn = cell(features, options.width, options.layers, batch_first=True, dropout=between, **nonlinearity)
        self.dropout = nn.Dropout(options.dropout)
        self.head = nn.Linear(options.width, spec.outputs)
        init_(self.rnn, options)

    def forward(self, x: Tensor) -> Tensor:
        x, _ = self.rnn(self.embedding(x))  # (B, T, D)
        return self.head(self.dropout(answering(x, self.spec)))


@torch.no_grad()
def init_(rnn: nn.RNNBase, options: LSTMOptions) -> None:
    """Initialise as `init`, `gain` and `forget_bias` say; PyTorch stacks the gates of a weight along its rows."""
    width = options.width
    for name, parameter in rnn.named_parameters():
        if options.init == "orthogonal":
            for gate in parameter.split(width):  # (D, D), (D, F) or (D,)
                if name.startswith("weight_hh"):
                    nn.init.orthogonal_(gate)
                elif name.startswith("weight_ih"):
                    nn.init.xavier_uniform_(gate)
                else:
                    nn.init.zeros_(gate)
        if name.startswith("weight_hh"):
            parameter.mul_(options.gain)
        if options.forget_bias is not None and name.startswith("bias"):  # the order of the gates is i, f, g, o
            parameter[width : 2 * width] = options.forget_bias if name.startswith("bias_ih") else 0.0
