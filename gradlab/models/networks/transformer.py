"""A causal decoder-only transformer (Vaswani et al., arXiv:1706.03762; Radford et al. 2019, "GPT-2").

Pre-norm against post-norm: Xiong et al., arXiv:2002.04745.

B batch, T time steps, D width, H heads, F features of a step, V outputs
"""

from __future__ import annotations

from functools import partial
from math import sqrt

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradlab.data.spec import Spec
from gradlab.models.networks.layers import ACTIVATIONS, answering, num_steps, run, to_steps


class Attention(nn.Module):
    """Multi-head attention of each step to itself and the steps before it."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.qkv = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        qkv = self.qkv(x).unflatten(-1, (3, self.heads, -1))  # (B, T, 3, H, D/H)
        q, k, v = qkv.transpose(1, 3).unbind(2)  # each (B, H, T, D/H)
        dropout = self.dropout if self.training else 0.0
        x = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)  # (B, H, T, D/H)
        x = self.project(x.transpose(1, 2).flatten(2))  # (B, T, D)
        return x


class Block(nn.Module):
    """Attention, then an MLP, each added to the residual stream."""

    def __init__(self, width: int, heads: int, norm: str, mlp_ratio: int, activation: str, dropout: float) -> None:
        super().__init__()
        hidden = mlp_ratio * width
        make_norm = partial(nn.LayerNorm, width) if norm in ("pre", "post") else nn.Identity
        self.post_norm = norm == "post"
        self.norm1, self.norm2 = make_norm(), make_norm()
        self.attention = Attention(width, heads, dropout)
        self.expand, self.activation = nn.Linear(width, hidden), ACTIVATIONS[activation]()
        self.project = nn.Linear(hidden, width)
        self.dropout = nn.Dropout(dropout)

    def mlp(self, x: Tensor) -> Tensor:
        x = self.project(self.activation(self.expand(x)))
        return x

    def forward(self, x: Tensor) -> Tensor:  # (B, T, D) -> (B, T, D)
        if self.post_norm:
            x = self.norm1(x + self.dropout(self.attention(x)))
            x = self.norm2(x + self.dropout(self.mlp(x)))
            return x
        x = x + self.dropout(self.attention(self.norm1(x)))
        x = x + self.dropout(self.mlp(self.norm2(x)))
        return x


class Transformer(nn.Module):
    """Tokens (B, T), sequences (B, T, F) or images -> (B, T, V) for targets "tokens", else the last step's (B, V)."""

    def __init__(
        self,
        spec: Spec,
        *,
        layers: int,
        width: int,
        heads: int,
        norm: str,
        mlp_ratio: int,
        activation: str,
        dropout: float,
        init: str,
        tie_embeddings: bool,
        activation_checkpointing: bool,
    ) -> None:
        """The fields of `model=transformer` (see gradlab/models/transformer.py)."""
        super().__init__()
        self.spec, self.recompute = spec, activation_checkpointing
        self.embedding, features = to_steps(spec, width)
        if spec.inputs != "tokens":
            self.embedding = nn.Sequential(self.embedding, nn.Linear(features, width))
        self.positions = nn.Embedding(num_steps(spec), width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(width, heads, norm, mlp_ratio, activation, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width) if norm in ("pre", "final") else nn.Identity()
        self.head = nn.Linear(width, spec.outputs)
        if tie_embeddings:
            self.head.weight = self.embedding.get_parameter("weight")
        if init == "gpt2":
            init_gpt2_(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embedding(x)  # (B, T, D)
        x = self.dropout(x + self.positions(torch.arange(x.shape[1], device=x.device)))
        for block in self.blocks:
            x = run(block, x, self.recompute and self.training)  # (B, T, D)
        x = self.head(answering(self.norm(x), self.spec))
        return x


@torch.no_grad()
def init_gpt2_(model: Transformer) -> None:
    """std 0.02 and zero biases; projections into the residual stream divided by sqrt of their number, 2 * layers."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            std = 0.02 / sqrt(2 * len(model.blocks)) if name.endswith("project") else 0.02
            nn.init.normal_(module.weight, std=std)
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)
