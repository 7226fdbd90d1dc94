"""`model=transformer`: the network is in networks/transformer.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gradlab.base.option import at_least, one_of, option, require
from gradlab.data.spec import Spec
from gradlab.models.base import ANSWERS, STEPS, ModelOption, check_fit

if TYPE_CHECKING:
    from torch import nn


@option("model", "transformer")
@dataclass
class TransformerOption(ModelOption):
    """A causal decoder-only transformer; an image is read as a sequence of its rows."""

    usual_data = "text"
    layers: int = 4
    """Number of blocks, each attention and an MLP."""
    width: int = 64
    """Size of the residual stream."""
    heads: int = 4
    """Attention heads; they share the width equally."""
    norm: str = "pre"
    """Layer norm before each sublayer and the head (pre), after each residual sum (post), before the head only (final),
    or nowhere at all (none)."""
    mlp_ratio: int = 4
    """Hidden size of the MLP as a multiple of the width."""
    activation: str = "gelu"
    """Activation of the MLP: gelu, relu or relu2 (squared)."""
    dropout: float = 0.0
    """Probability of dropping an attention weight or an element of a sublayer's output."""
    init: str = "default"
    """PyTorch's own initialisation (default), or normal with std 0.02 and scaled residual projections (gpt2)."""
    tie_embeddings: bool = False
    """Whether the head uses the embedding's weights."""
    activation_checkpointing: bool = False
    """Whether blocks are computed again in the backward pass instead of keeping their activations."""

    def __post_init__(self) -> None:
        at_least(self, layers=1, heads=1, mlp_ratio=1)
        require(
            self.width >= 1 and self.width % self.heads == 0, "width", self.width, f"a multiple of heads={self.heads}"
        )
        one_of("norm", self.norm, ("pre", "post", "final", "none"))
        one_of("activation", self.activation, ("gelu", "relu", "relu2"))
        require(0 <= self.dropout < 1, "dropout", self.dropout, "in [0, 1)")
        one_of("init", self.init, ("default", "gpt2"))

    def build(self, spec: Spec) -> nn.Module:
        check_fit("transformer", spec, STEPS, ANSWERS)
        same = spec.inputs == spec.targets == "tokens" and spec.vocabulary == spec.outputs
        require(same or not self.tie_embeddings, "tie_embeddings", True, "false: the data's inputs and targets differ")
        from gradlab.models.networks.transformer import Transformer

        return Transformer(spec, **vars(self))
