"""The options of every model. Only `build` imports PyTorch, so that `--help` and a wrong value answer at once."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Any

from gradlab.base.option import Invalid, one_of, option, require
from gradlab.data.spec import Spec

if TYPE_CHECKING:
    from torch import nn


@dataclass
class Model:
    """What is trained: `build` makes the module that fits the data, its weights drawn from torch's global generator."""

    def build(self, spec: Spec) -> nn.Module:
        """Make the module; raise `Invalid` with an empty field name where the model does not fit the data."""
        raise NotImplementedError


def check_fit(name: str, spec: Spec, inputs: tuple[str, ...], targets: tuple[str, ...]) -> None:
    """Raise `Invalid` unless the model takes what the data gives and answers what the data asks."""
    if spec.inputs not in inputs:
        given = f"{spec.inputs} of shape {tuple(spec.shape)}"
        raise Invalid("", name, f"needs {' or '.join(inputs)}, but the data gives {given}")
    if spec.targets not in targets:
        raise Invalid("", name, f"answers with {' or '.join(targets)}, but the data asks for {spec.targets}")


STEPS = ("tokens", "sequences", "images")
ANSWERS = ("classes", "values", "tokens")


@option("model", "transformer")
@dataclass
class TransformerOptions(Model):
    """A causal decoder-only transformer; an image is read as a sequence of its rows."""

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
        require(self.layers >= 1, "layers", self.layers, ">= 1")
        require(self.heads >= 1, "heads", self.heads, ">= 1")
        require(
            self.width >= 1 and self.width % self.heads == 0, "width", self.width, f"a multiple of heads={self.heads}"
        )
        one_of("norm", self.norm, ("pre", "post", "final", "none"))
        require(self.mlp_ratio >= 1, "mlp_ratio", self.mlp_ratio, ">= 1")
        one_of("activation", self.activation, ("gelu", "relu", "relu2"))
        require(0 <= self.dropout < 1, "dropout", self.dropout, "in [0, 1)")
        one_of("init", self.init, ("default", "gpt2"))

    def build(self, spec: Spec) -> nn.Module:
        check_fit("transformer", spec, STEPS, ANSWERS)
        same = spec.inputs == spec.targets == "tokens" and spec.vocabulary == spec.outputs
        require(same or not self.tie_embeddings, "tie_embeddings", True, "false: the data's inputs and targets differ")
        from gradlab.models.transformer import Transformer

        return Transformer(self, spec)


@option("model", "lstm")
@dataclass
class LSTMOptions(Model):
    """A recurrent network; an image is read as a sequence of its rows."""

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
        require(self.layers >= 1, "layers", self.layers, ">= 1")
        require(self.width >= 1, "width", self.width, ">= 1")
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
        from gradlab.models.lstm import Recurrent

        return Recurrent(self, spec)


@option("model", "resnet")
@dataclass
class ResNetOptions(Model):
    """torchvision's ResNet with a stem for small images: a 3x3 convolution of stride 1 and no pooling."""

    depth: int = 18
    """Number of weighted layers: 18, 34 or 50."""
    norm: str = "batch"
    """Normalisation after each convolution: batch, group (no statistics over the batch) or none."""
    groups: int = 8
    """Groups of norm=group; must divide the 64 channels of the narrowest layer."""
    residual: bool = True
    """Whether each block adds its input, or a 1x1 convolution of it, to its output."""

    def __post_init__(self) -> None:
        require(self.depth in (18, 34, 50), "depth", self.depth, "one of 18, 34, 50")
        one_of("norm", self.norm, ("batch", "group", "none"))
        require(self.groups >= 1 and 64 % self.groups == 0, "groups", self.groups, "a divisor of 64")

    def build(self, spec: Spec) -> nn.Module:
        check_fit("resnet", spec, ("images",), ("classes", "values"))
        from gradlab.models.resnet import resnet

        return resnet(self, spec)


@option("model", "sigmoid_mlp")
@dataclass
class SigmoidMLPOptions(Model):
    """An MLP; a deep one of sigmoids is of the kind whose gradients vanish; images and sequences are flattened."""

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
        require(self.layers >= 1, "layers", self.layers, ">= 1")
        require(self.width >= 1, "width", self.width, ">= 1")
        one_of("activation", self.activation, ("sigmoid", "tanh", "relu", "gelu"))
        one_of("init", self.init, ("default", "xavier", "he", "orthogonal", "too_small", "too_large"))
        require(0 < self.gain < inf, "gain", self.gain, "> 0")
        one_of("norm", self.norm, ("none", "batch", "layer"))
        once = not (self.activation_checkpointing and self.norm == "batch")
        require(once, "activation_checkpointing", True, "false with norm=batch: its statistics would be updated twice")

    def build(self, spec: Spec) -> nn.Module:
        check_fit("sigmoid_mlp", spec, ("vectors", "images", "sequences"), ("classes", "values"))
        from gradlab.models.sigmoid_mlp import SigmoidMLP

        return SigmoidMLP(self, spec)


@option("model", "policy")
@dataclass
class PolicyOptions(Model):
    """An MLP from what is seen to the probabilities of actions, which plays the episodes that it learns from."""

    layers: int = 1
    """Number of hidden layers, before the linear head."""
    width: int = 64
    """Units of a hidden layer."""
    activation: str = "tanh"
    """Activation: sigmoid, tanh, relu or gelu."""

    def __post_init__(self) -> None:
        require(self.layers >= 1, "layers", self.layers, ">= 1")
        require(self.width >= 1, "width", self.width, ">= 1")
        one_of("activation", self.activation, ("sigmoid", "tanh", "relu", "gelu"))

    def build(self, spec: Spec) -> nn.Module:
        check_fit("policy", spec, ("episodes",), ("returns",))
        from gradlab.models.policy import Policy

        return Policy(self, spec)


@option("model", "custom")
@dataclass
class CustomOptions(Model):
    """Any module, yours or a library's: `target(*args, **kwargs)`."""

    target: str = ""
    """What to call, as "package.module:Name" or "package.module:Name.method"; the working directory is searched too."""
    args: list[Any] = field(default_factory=list)
    """Positional arguments; a mapping of just `target` and maybe `args` and `kwargs`, at any depth, is built first."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments, with the same rule for mappings."""

    def __post_init__(self) -> None:
        require(":" in self.target, "target", self.target, 'of the form "package.module:Name"')

    def build(self, spec: Spec) -> nn.Module:
        from gradlab.models.custom import build

        return build(self.target, self.args, self.kwargs)
