"""Recurrent networks: LSTM (Hochreiter and Schmidhuber 1997), GRU (Cho et al., arXiv:1406.1078) and Elman's RNN.

Orthogonal recurrent weights: Saxe et al., arXiv:1312.6120. Forget bias: Jozefowicz et al. 2015.

B batch, T time steps, F features of a step, D width, V outputs
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from gradlab.data.spec import Spec
from gradlab.models.networks.layers import answering, to_steps


class Recurrent(nn.Module):
    """Tokens (B, T), sequences (B, T, F) or images -> (B, T, V) for targets "tokens", else the last step's (B, V)."""

    def __init__(
        self,
        spec: Spec,
        *,
        cell: str,
        layers: int,
        width: int,
        nonlinearity: str,
        dropout: float,
        init: str,
        gain: float,
        forget_bias: float | None,
    ) -> None:
        """The fields of `model=lstm` (see gradlab/models/lstm.py)."""
        super().__init__()
        self.spec = spec
        self.embedding, features = to_steps(spec, width)
        network: Any = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}[cell]
        chosen = {"nonlinearity": nonlinearity} if cell == "rnn" else {}
        between = dropout if layers > 1 else 0.0  # PyTorch warns where there is no next layer
        self.rnn = network(features, width, layers, batch_first=True, dropout=between, **chosen)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(width, spec.outputs)
        init_(self.rnn, init, gain, forget_bias)

    def forward(self, x: Tensor) -> Tensor:
        x, _ = self.rnn(self.embedding(x))  # (B, T, D)
        x = self.head(self.dropout(answering(x, self.spec)))
        return x


@torch.no_grad()
def init_(rnn: nn.RNNBase, init: str, gain: float, forget_bias: float | None) -> None:
    """Initialise the weights and biases; PyTorch stacks the gates of a weight along its rows."""
    width = rnn.hidden_size
    for name, parameter in rnn.named_parameters():
        if init == "orthogonal":
            for gate in parameter.split(width):  # (D, D), (D, F) or (D,)
                if name.startswith("weight_hh"):
                    nn.init.orthogonal_(gate)
                elif name.startswith("weight_ih"):
                    nn.init.xavier_uniform_(gate)
                else:
                    nn.init.zeros_(gate)
        if name.startswith("weight_hh"):
            parameter.mul_(gain)
        if forget_bias is not None and name.startswith("bias"):  # the order of the gates is i, f, g, o
            parameter[width : 2 * width] = forget_bias if name.startswith("bias_ih") else 0.0
