"""The module that overflowed first: known by construction, found in the order of execution, in every precision."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import differences, sampled, trainer, weights
from torch import nn
from torch.utils.checkpoint import checkpoint

from gradlab.cli.replay import main
from gradlab.data.spec import Spec
from gradlab.diagnosis.replay.overflow import RESULT, Overflow
from gradlab.diagnosis.replay.replay import first_overflow_forward, replay
from gradlab.models.base import ModelOption
from gradlab.models.lstm import LSTMOption
from gradlab.models.sigmoid_mlp import SigmoidMLPOption
from gradlab.models.transformer import TransformerOption
from gradlab.train.inspection import find_overflow
from gradlab.train.sink import FunctionSink
from gradlab.train.trainer import Trainer
from gradlab.update.clip import NoClip
from gradlab.update.loss import CrossEntropy, MeanSquaredError
from gradlab.update.noise import NoNoise
from gradlab.update.precision import BF16, FP16, FP32, PrecisionOption
from gradlab.update.schedule import Constant
from gradlab.update.stats import MicroBatch
from gradlab.update.step import Update

CPU = torch.device("cpu")


def first_overflow(*update: Any, **given: Any) -> Overflow | None:
    return replay(*update, **given).first


class Net(nn.Module):
    """Three linear layers, the gain of each its own; a sum beside them that is no module's."""

    def __init__(self, gains: tuple[float, float, float], added: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(8, 8, bias=False) for _ in range(3))
        self.norm, self.added = nn.BatchNorm1d(8), added
        with torch.no_grad():
            for layer, gain in zip(self.layers, gains, strict=True):
                layer.weight.copy_(torch.eye(8) * gain)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(x)
        for i, layer in enumerate(self.layers):
            x = layer(x)
            if i == 1 and self.added:
                x = x + x * self.added
        return x


def found(model: nn.Module, option: PrecisionOption):
    torch.manual_seed(1)
    before = [b.clone() for b in model.buffers()]
    overflow = first_overflow(
        model, CrossEntropy(), option.build(CPU), [(torch.randn(16, 8), torch.randint(0, 8, (16,)))]
    )
    assert all(torch.equal(a, b) for a, b in zip(before, model.buffers(), strict=True))
    assert all(p.grad is None for p in model.parameters())
    return overflow


@pytest.mark.parametrize(
    ("option", "gain", "limit"),
    [(FP16(init_scale=1.0), 30.0, 65504.0), (FP32(), 1e13, 3.4e38), (BF16(), 1e13, 3.39e38)],
)
def test_names_the_module_and_how_far_it_went(option: PrecisionOption, gain: float, limit: float) -> None:
    """Gains multiply: the second layer stays in range, the third does not; what follows is not blamed."""
    third = limit / gain**2
    overflow = found(Net((gain, gain, third)), option)
    assert overflow is not None and (overflow.phase, overflow.module) == ("forward", "layers.2")
    assert overflow.healthy == "layers.1" and overflow.limit == pytest.approx(limit, rel=0.01)
    if isinstance(option, FP16):
        assert overflow.output_max > 65504 and overflow.output_max == pytest.approx(
            overflow.input_max * third, rel=0.01
        )
        assert "layers.2 (Linear) overflows first" in str(overflow)
    assert found(Net((gain, gain, third / 100)), option) is None


def test_an_overflow_in_no_module_lies_between_two() -> None:
    overflow = found(Net((100.0, 100.0, 1.0), added=1e4), FP16())
    assert overflow is not None and (overflow.phase, overflow.module) == ("between", "layers.2")
    assert "last finite: layers.1" in str(overflow)


def test_a_gradient_that_overflows_in_the_backward_pass() -> None:
    """Outputs of 1e-3 are small; a loss scale of 2^40 is too large for their gradients."""
    overflow = found(Net((1.0, 1.0, 1.0)), FP16(init_scale=2.0**40))
    assert overflow is not None and overflow.phase == "backward" and overflow.module in ("layers.2", "")
    assert "backward" in str(overflow)


def test_broken_weights_and_inputs_come_first() -> None:
    model = Net((1.0, 1.0, 1.0))
    bad = [(torch.full((4, 8), float("inf")), torch.zeros(4, dtype=torch.int64))]
    overflow = first_overflow(model, CrossEntropy(), FP16().build(CPU), bad)
    assert overflow is not None and overflow.phase == "inputs"
    with torch.no_grad():
        model.layers[1].weight[0, 0] = float("nan")
    overflow = first_overflow(model, CrossEntropy(), FP16().build(CPU), bad)
    assert overflow is not None and (overflow.phase, overflow.module) == ("parameters", "layers.1.weight")


@pytest.mark.parametrize(("reduction", "scale"), [("mean", 2.0**20), ("sum", 2.0**12)])
def test_a_weight_whose_gradient_alone_overflows(reduction: str, scale: float) -> None:
    """Each of 256 samples has a gradient that fits; their sum in the weight does not. A sum is 256 times a mean."""
    torch.manual_seed(1)
    x = torch.randn(256, 8)
    model, loss = Net((1.0, 1.0, 1.0)), CrossEntropy(reduction=reduction)
    overflow = first_overflow(model, loss, FP16(init_scale=scale).build(CPU), [(x, x.argmin(-1))])
    assert overflow is not None and (overflow.phase, overflow.module) == ("gradient", "layers.2.weight")
    assert first_overflow(model, loss, FP16(init_scale=scale / 64).build(CPU), [(x, x.argmin(-1))]) is None
    ranks = first_overflow(model, loss, FP16(init_scale=scale / 64).build(CPU), [(x, x.argmin(-1))], ranks=64)
    assert ranks == overflow


class Times(torch.autograd.Function):
    """The identity, whose gradient is multiplied."""

    @staticmethod
    def forward(ctx, x: torch.Tensor, factor: float) -> torch.Tensor:
        ctx.factor = factor
        return x.clone()

    @staticmethod
    def backward(ctx, grad: torch.Tensor):
        return grad * ctx.factor, None


PRECISIONS = {"fp16": FP16(init_scale=1.0), "bf16": BF16(), "fp32": FP32()}
MLP = SigmoidMLPOption(layers=6, width=8, activation="tanh", init="orthogonal")
MLP_AGAIN = replace(MLP, activation_checkpointing=True)
GPT = TransformerOption(layers=2, width=8, heads=2, activation="relu2")
GPT_AGAIN = replace(GPT, activation_checkpointing=True)
IMAGES = Spec("images", (1, 8, 8), "classes", 4)
TOKENS = Spec("tokens", (6,), "tokens", 11, vocabulary=11)
MODELS = [
    ("mlp", MLP, IMAGES),
    ("mlp_again", MLP_AGAIN, IMAGES),
    ("gpt", GPT, TOKENS),
    ("gpt_again", GPT_AGAIN, TOKENS),
]
AT_DEPTH = [
    pytest.param(options, spec, id=name, marks=[pytest.mark.slow] * name.endswith("again"))
    for name, options, spec in MODELS
]


def build(options: ModelOption, spec: Spec) -> tuple[nn.Module, list[tuple[torch.Tensor, torch.Tensor]]]:
    torch.manual_seed(0)
    model = options.build(spec)
    if spec is IMAGES:
        return model, [(torch.randn(4, 1, 8, 8), torch.randint(0, 4, (4,)))]
    return model, [(torch.randint(0, 11, (4, 6)), torch.randint(0, 11, (4, 6)))]


def planted(model: nn.Module, name: str, how: str) -> None:
    """Make one module overflow, whatever type it computes in."""

    def act(module: nn.Module, inputs: tuple, output: torch.Tensor) -> torch.Tensor:
        return Times.apply(output * 1e38 * 1e38, 1.0) if how == "forward" else Times.apply(output, 1e38 * 1e38)

    model.get_submodule(name).register_forward_hook(act)


def leaves(model: nn.Module) -> list[str]:
    return [name for name, m in model.named_modules() if name and not list(m.children())]


@pytest.mark.parametrize("precision", sampled(PRECISIONS, 3))
@pytest.mark.parametrize("how", ["forward", "backward"])
@pytest.mark.parametrize(("options", "spec"), AT_DEPTH)
def test_names_the_exact_module_at_every_depth(options: ModelOption, spec: Spec, how: str, precision: str) -> None:
    """Every leaf of a deep MLP and of a transformer; some of them with activations computed again.

    Every second leaf in fp16, and the others in fp32 and bf16, which share all code with it.
    """
    every = 3 if options.activation_checkpointing else 2
    first = 0 if precision == "fp16" else 1
    for name in leaves(build(options, spec)[0])[first::every]:
        model, batches = build(options, spec)
        planted(model, name, how)
        overflow = first_overflow(model, CrossEntropy(), PRECISIONS[precision].build(CPU), batches)
        assert overflow is not None, name
        dropped = name.endswith("dropout") and how == "backward"  # without a probability it has no gradient of its own
        at = (overflow.phase, overflow.module)
        of_a_weight = at == ("gradient", f"{name}.weight") and overflow.inside == name  # it has the output's shape
        assert at == (how, name) or of_a_weight or dropped, (name, str(overflow))


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("how", ["forward", "backward"])
def test_of_two_overflows_the_first_in_the_order_of_execution(how: str, precision: str) -> None:
    """In the backward pass that is the later layer; a sibling that is defined first but runs last is not blamed."""
    for one, other in [("layers.2.linear", "layers.4.linear"), ("layers.3.activation", "head")]:
        model, batches = build(MLP, IMAGES)
        planted(model, one, how)
        planted(model, other, how)
        overflow = first_overflow(model, CrossEntropy(), PRECISIONS[precision].build(CPU), batches)
        assert overflow is not None and overflow.module == (one if how == "forward" else other)


@pytest.mark.slow
@pytest.mark.parametrize("precision", sampled(PRECISIONS, 3))
def test_large_weights_of_every_layer(precision: str) -> None:
    """No hook: weights that a type holds and whose products it does not."""
    limit = {"fp16": 65504.0, "bf16": 3e38, "fp32": 3e38}[precision]
    for _, options, spec in MODELS[::2]:
        linear = [n for n, m in build(options, spec)[0].named_modules() if isinstance(m, nn.Linear)]
        for name in linear:
            model, batches = build(options, spec)
            layer = model.get_submodule(name)
            with torch.no_grad():
                layer.bias.fill_(limit * 0.9)
                layer.weight.copy_(layer.weight.sign() * limit * 0.9)
            overflow = first_overflow(model, CrossEntropy(), PRECISIONS[precision].build(CPU), batches)
            assert overflow is not None and (overflow.phase, overflow.module) == ("forward", name), (name, overflow)
            assert overflow.output_max is None or overflow.output_max > limit


class Shared(nn.Module):
    """One layer that is called in a loop, each time with twice the input."""

    def __init__(self, times: int, gain: float, nested: bool = False) -> None:
        super().__init__()
        self.layer, self.times, self.nested = nn.Linear(8, 8, bias=False), times, nested
        with torch.no_grad():
            self.layer.weight.copy_(torch.eye(8) * gain)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(self.times):
            x = self.layer(x)
        return x


@pytest.mark.parametrize("exponent", [1, 2, 3, 4])
def test_a_shared_module_is_named_with_the_call(exponent: int) -> None:
    """A gain g overflows fp16 in the call in which g^n passes 65504."""
    gain = 65504 ** (1 / (exponent - 0.5))
    x = torch.ones(4, 8)
    overflow = first_overflow(
        Shared(6, gain), CrossEntropy(), FP16(init_scale=1.0).build(CPU), [(x, torch.zeros(4, dtype=torch.int64))]
    )
    assert overflow is not None and (overflow.module, overflow.call, overflow.calls) == ("layer", exponent, 6)
    assert f"call {exponent} of 6" in str(overflow)


@pytest.mark.parametrize("exponent", [2, 3, 5])
def test_a_shared_module_in_the_backward_pass(exponent: int) -> None:
    """Backwards the last call is the first: the gradient of about 2^12 passes 65504 after so many of 6 calls."""
    model = Shared(6, 2 ** (4.0 / (exponent - 0.5)))
    x = torch.full((4, 8), 1e-4)
    x[:, 1] = 0.0
    option = FP16(init_scale=2.0**12 * 4 * 8 / 7)
    overflow = first_overflow(model, CrossEntropy(), option.build(CPU), [(x, torch.zeros(4, dtype=torch.int64))])
    assert overflow is not None and (overflow.phase, overflow.module) == ("backward", "layer")
    assert (overflow.call, overflow.calls) == (6 - exponent + 1, 6)


def test_the_micro_batch_is_named() -> None:
    model = Net((1.0, 1.0, 1.0))
    torch.manual_seed(1)
    batches = [(torch.randn(16, 8), torch.randint(0, 8, (16,))) for _ in range(4)]
    model.layers[1].register_forward_hook(lambda m, i, o: o * (1e30 if i[0] is marked[0] else 1.0))
    marked: list = [None]
    model.layers[1].register_forward_pre_hook(lambda m, i: marked.__setitem__(0, i[0] if next(calls) == 2 else None))
    calls = iter(range(100))
    overflow = first_overflow(model, CrossEntropy(), FP16(init_scale=1.0).build(CPU), batches)
    assert overflow is not None and (overflow.module, overflow.micro_batch, overflow.micro_batches) == (
        "layers.1",
        3,
        4,
    )
    batches[1][0][0, 0] = float("nan")
    overflow = first_overflow(model, CrossEntropy(), FP16(init_scale=1.0).build(CPU), batches)
    assert overflow is not None and (overflow.phase, overflow.micro_batch) == ("inputs", 2)


class Parts(nn.Module):
    """Returns what is not a tensor: a dictionary of a tuple."""

    def __init__(self, gain: float) -> None:
        super().__init__()
        self.gain = gain

    def forward(self, x: torch.Tensor) -> dict:
        return {"a": (x, None), "b": [x * self.gain]}


class OfParts(nn.Module):
    """Two modules that return dictionaries, and a layer after them."""

    def __init__(self, gains: tuple[float, float]) -> None:
        super().__init__()
        self.first, self.second, self.head = Parts(gains[0]), Parts(gains[1]), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.head(x)
        y = self.second(self.first(x)["b"][0])
        return y["a"][0] + y["b"][0]


def test_modules_that_return_no_tensor() -> None:
    for gains, name in (((1e30, 1.0), "first"), ((1.0, 1e30), "second")):
        overflow = found(OfParts(gains), FP16(init_scale=1.0))
        assert overflow is not None and (overflow.phase, overflow.module) == ("forward", name)


@pytest.mark.parametrize("cell", ["lstm", "gru", "rnn"])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_recurrent_networks(cell: str, precision: str) -> None:
    """The head overflows, not the cells, whose states are bounded."""
    model, batches = build(LSTMOption(cell=cell, width=8), TOKENS)
    limit = {"fp16": 65504.0, "bf16": 3e38, "fp32": 3e38}[precision]
    with torch.no_grad():
        model.head.bias.fill_(limit * 0.9)
        model.head.weight.fill_(limit * 0.9)
        model.rnn.bias_ih_l0.fill_(5.0)
    overflow = first_overflow(model, CrossEntropy(), PRECISIONS[precision].build(CPU), batches)
    assert overflow is not None and (overflow.phase, overflow.module) == ("forward", "head")


class Wide(nn.Module):
    """Computes in fp32 whatever comes in."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.float() * 1e6


def test_a_number_that_only_a_wider_type_holds_is_blamed_on_the_module_that_computed_it() -> None:
    """1e6 is finite in fp32, and no fp16 number for the layer after it."""
    gain = nn.LayerNorm(8)
    with torch.no_grad():
        gain.weight.fill_(1e6)
    for module in (Wide(), gain):
        model = nn.Sequential(nn.Linear(8, 8), module, nn.Identity(), nn.Linear(8, 8))
        overflow = found(model, FP16(init_scale=1.0))
        assert overflow is not None and (overflow.phase, overflow.module) == ("forward", "1")
        assert overflow.output_max is not None and 65504 < overflow.output_max < 1e7 and overflow.limit == 65504
        assert overflow.healthy == "0"
        cast = isinstance(module, Wide)  # computed in fp32; layer norm is in fp16
        assert (overflow.rounded == RESULT) == cast
        assert ("where the result of mul is rounded to a narrower type: " in str(overflow)) == cast
        assert found(model, BF16()) is None


class Branches(nn.Module):
    """Two functional branches, both of which overflow; one may be absorbed."""

    def __init__(self, absorbed: bool) -> None:
        super().__init__()
        self.head, self.absorbed = nn.Linear(8, 8), absorbed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one = (self.head(x) * 1e38).sinh()
        other = (x * 1e5).abs().exp()
        return other + one.clamp(-1, 1) if self.absorbed else other + one


def test_of_two_in_one_module_the_first_that_gets_out() -> None:
    for absorbed, operation in ((False, "sinh"), (True, "exp")):
        overflow = found(Branches(absorbed), FP32())
        assert overflow is not None and (overflow.phase, overflow.module) == ("forward", "")
        assert overflow.operation == operation


def test_a_weight_that_no_fp16_number_is() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    with torch.no_grad():
        model[1].weight[0, 0] = 1e6
    overflow = found(model, FP16(init_scale=1.0))
    assert overflow is not None and (overflow.phase, overflow.module, overflow.rounded) == ("forward", "1", "weight")
    assert "the weight of 1 (Linear) overflows first" in str(overflow) and overflow.output_max == 1e6


class Twice(nn.Module):
    """Its layer's output is used twice, each time with a gradient of 3e38."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layer(x)
        return Fixed.apply(x) + Fixed.apply(x)


class Fixed(torch.autograd.Function):
    """The identity, whose gradient is 3e38."""

    @staticmethod
    def forward(ctx, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx, grad: torch.Tensor) -> torch.Tensor:
        return torch.full_like(grad, 3e38)


def test_a_sum_of_gradients_that_overflows_alone() -> None:
    overflow = found(Twice(), FP32())
    assert overflow is not None and (overflow.phase, overflow.module) == ("backward", "layer")
    assert "the gradient of the output of layer (Linear) overflows first, in the sum over its uses" in str(overflow)


def test_accumulation_that_overflows() -> None:
    """Each micro-batch's gradient of the bias is 3e38, which the second passes."""
    model = nn.Sequential(nn.Flatten(), Shift())
    batches = [(torch.randn(1, 8), torch.zeros(1, dtype=torch.int64)) for _ in range(3)]
    overflow = first_overflow(model, CrossEntropy(), FP32().build(CPU), batches)
    assert overflow is not None and (overflow.phase, overflow.module) == ("gradient", "1.bias")
    assert (overflow.micro_batch, overflow.micro_batches) == (2, 3) and "micro-batch 2 of 3" in str(overflow)
    assert first_overflow(model, CrossEntropy(), FP32().build(CPU), batches[:1]) is None


class Shift(nn.Module):
    """x + bias."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + Fixed.apply(self.bias)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_in_place_activations_and_nested_checkpoints(precision: str) -> None:
    """What changes its input in place, and what is recomputed with a graph of its own, are named all the same."""
    burst = nn.Identity()
    burst.register_forward_hook(lambda m, i, o: Times.apply(o, 1e38 * 1e38))
    inner = nn.Sequential(nn.Linear(8, 8), nn.ReLU(inplace=True), burst, nn.Linear(8, 8))

    class Reentrant(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.inner = nn.Linear(8, 8), inner

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return checkpoint(self.inner, self.first(x), use_reentrant=True)

    for model, name in ((inner, "2"), (Reentrant(), "inner.2")):
        overflow = found(model, PRECISIONS[precision])
        assert overflow is not None and (overflow.phase, overflow.module) == ("backward", name)


class Masked(nn.Module):
    """Attention with a mask of minus infinity, as a buffer, an argument or filled in; then a layer."""

    def __init__(self, how: str, gain: float) -> None:
        super().__init__()
        self.how, self.query, self.soft, self.head = how, nn.Linear(8, 8), nn.Softmax(-1), nn.Linear(8, 8)
        self.scores, self.passing = nn.Identity(), nn.Identity()
        self.register_buffer("mask", torch.full((16, 16), -torch.inf).triu(1))
        self.constant = self.mask.clone()
        with torch.no_grad():
            self.head.weight.mul_(gain)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.query(x)
        scores = x @ x.T
        if self.how == "filled":
            scores = scores.masked_fill(self.mask.isinf(), -torch.inf)
        else:
            scores = scores + self.passing(self.mask if self.how == "buffer" else self.constant)
        return self.head(self.soft(self.scores(scores)) @ x)


@pytest.mark.parametrize("how", ["buffer", "constant", "filled"])
def test_a_mask_is_not_an_overflow(how: str) -> None:
    overflow = found(Masked(how, 1e30), BF16())
    assert overflow is None
    overflow = found(Masked(how, 1e7), FP16(init_scale=1.0))
    assert overflow is not None and (overflow.phase, overflow.module) == ("forward", "head")


def test_weights_and_targets_that_are_broken() -> None:
    for precision in PRECISIONS.values():
        for name in ("head.weight", "layers.3.linear.bias"):
            model, batches = build(MLP, IMAGES)
            with torch.no_grad():
                model.get_parameter(name).view(-1)[0] = float("nan")
            overflow = first_overflow(model, CrossEntropy(), precision.build(CPU), batches)
            assert overflow is not None and (overflow.phase, overflow.module) == ("parameters", name)
            assert overflow.ranges[0].nonfinite > 0
    batches = [(torch.randn(4, 8), torch.full((4, 8), float("inf")))]
    overflow = first_overflow(Net((1.0, 1.0, 1.0)), MeanSquaredError(), FP32().build(CPU), batches)
    assert overflow is not None and overflow.phase == "targets"


def test_the_loss() -> None:
    """Outputs of 1e25 are fine in fp32; their squares are not."""
    batches = [(torch.randn(4, 8), torch.full((4, 8), 1e25))]
    overflow = first_overflow(Net((1.0, 1.0, 1.0)), MeanSquaredError(), FP32().build(CPU), batches)
    assert overflow is not None and (overflow.phase, overflow.module) == ("loss", "")
    assert overflow.operation in ("pow", "square") and "the loss overflows in" in str(overflow)
    assert overflow.output_max == pytest.approx(1e50, rel=0.01)


def test_a_limit_of_ones_own() -> None:
    """Gains of 10 each: the second output is the first beyond 50."""
    model = Net((10.0, 10.0, 10.0))
    torch.manual_seed(1)
    batches = [(torch.randn(16, 8), torch.randint(0, 8, (16,)))]
    overflow = first_overflow(model, CrossEntropy(), FP32().build(CPU), batches, limit=50)
    assert overflow is not None and (overflow.phase, overflow.module, overflow.beyond) == ("forward", "layers.1", 50)
    assert first_overflow(model, CrossEntropy(), FP32().build(CPU), batches, limit=1e5) is None


@pytest.mark.parametrize(("x", "phase"), [(3e38, "unscale"), (3e36, None)])
def test_unscaling_by_a_tiny_scale(x: float, phase: str | None) -> None:
    """The scaled gradient fits in fp32; the true one, 3.5 x, may not."""
    model = nn.Linear(8, 8)
    with torch.no_grad():
        model.weight.zero_()
    precision = FP16(init_scale=2.0**-10).build(CPU)
    precision.dtype = None
    batches = [(torch.full((4, 8), x), torch.zeros(4, dtype=torch.int64))]
    overflow = first_overflow(model, CrossEntropy(reduction="sum"), precision, batches)
    assert (overflow and (overflow.phase, overflow.module)) == (phase and (phase, "weight"))


def test_an_absorbed_overflow_is_reported() -> None:
    """A sigmoid makes 1 of infinity: first, and not what broke the update."""
    model, batches = build(replace(MLP, activation="sigmoid"), IMAGES)
    planted(model, "layers.4.linear", "forward")
    found = replay(model, CrossEntropy(), FP32().build(CPU), batches)
    assert found.first is not None and found.first.module == "layers.4.linear"
    planted(model, "head", "forward")
    found = replay(model, CrossEntropy(), FP32().build(CPU), batches)
    assert found.first is not None and found.first.module == "layers.4.linear" and not found.finite


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_replayed_update_is_the_real_one(precision: str) -> None:
    """Loss and norm, of unequal micro-batches, are those of the trainer's update, bit for bit."""
    model, _ = build(GPT, TOKENS)
    torch.manual_seed(2)
    batches = [(torch.randint(0, 11, (n, 6)), torch.randint(0, 11, (n, 6))) for n in (4, 2, 3)]
    option = PRECISIONS[precision]
    found = replay(model, CrossEntropy(), option.build(CPU), batches)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    parts = (model, CrossEntropy(), optimizer, Constant(), option.build(CPU), NoNoise(), NoClip())
    stats = Update(*parts, lr=0.1)([MicroBatch(*b) for b in batches])
    assert (found.first, found.loss, found.grad_norm) == (None, stats.loss.item(), stats.grad_norm.item())


FAST = ("model=sigmoid_mlp", "model.layers=3", "model.width=8", "trainer.epochs=1", "trainer.evaluate_every=0")
CRASH = (*FAST, "model.gain=1e4", "model.activation=relu", "precision=fp16", "precision.init_scale=1")


def crashed(folder: Path, *overrides: str) -> Path:
    """The folder of a run, with what the command writes beside what the trainer does."""
    run = trainer(folder, *overrides)
    outcome = run.run()
    (folder / ".hydra").mkdir()
    (folder / ".hydra" / "overrides.yaml").write_text(json.dumps(["trainer.progress=none", *overrides]))
    (folder / ".hydra" / "hydra.yaml").write_text(json.dumps({"hydra": {"runtime": {"config_sources": []}}}))
    (folder / "diagnosis.json").write_text(json.dumps({"verdict": "x", "outcome": {"status": outcome.status}}))
    return folder


def listing(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_the_command_replays_and_writes_one_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = crashed(tmp_path / "run", *CRASH, "accumulation.steps=2")
    before = listing(folder)
    assert main([str(folder)]) == 0
    output = capsys.readouterr().out
    assert "update 1, epoch 1, replayed: fp16, loss scale 1, cpu" in output
    assert "the output of layers.1.linear (Linear, micro-batch 1 of 2) overflows first" in output
    after = listing(folder)
    assert after.keys() - before.keys() == {"replay.json"} and all(after[k] == v for k, v in before.items())
    result = json.loads(after["replay.json"])
    assert (result["attempt"], result["finite"], result["notes"]) == (1, False, [])
    assert (result["first"]["phase"], result["first"]["module"]) == ("forward", "layers.1.linear")
    assert {r["name"] for r in result["first"]["ranges"]} == {"input 1", "weight", "bias", "result"}
    assert result["recorded"] == result["replayed"] == {"loss": "NaN", "grad_norm": "NaN"}
    assert [row["module"] for row in result["modules"]][-1] == "layers.0"
    assert main([str(folder), "--all"]) == 0
    rows = json.loads((folder / "replay.json").read_text())["modules"]
    assert [row["module"] for row in rows if row["micro_batch"] == 1][-2:] == ["head", ""]
    assert all(row["output"] is not None for row in rows)
    assert main([str(folder), "--max", "100"]) == 0
    assert json.loads((folder / "replay.json").read_text())["first"]["beyond"] == 100


def test_the_command_replays_the_weights_and_the_draws_of_then(tmp_path: Path) -> None:
    """A scale that grows 64-fold until gradients overflow: the loss is finite, of moved weights and of dropout."""
    grows = ("precision.init_scale=64", "precision.growth_interval=1", "precision.growth_factor=64")
    dropout = ("model=transformer", "model.layers=1", "model.width=16", "model.dropout=0.5", "data.length=8")
    short = ("data.samples=64", "data.test_samples=8", "data.batch_size=8", "trainer.evaluate_every=0")
    overrides = (*dropout, *short, *grows, "precision=fp16", "precision.nonfinite=stop", "accumulation.steps=2")
    folder = crashed(tmp_path / "run", *overrides)
    assert main([str(folder)]) == 0
    result = json.loads((folder / "replay.json").read_text())
    assert result["attempt"] > 3 and result["first"]["phase"] in ("backward", "gradient")
    assert result["recorded"] == result["replayed"] and math.isfinite(result["recorded"]["loss"])


def test_the_command_on_what_python_remembers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A counter in the module is in no checkpoint: the fourth pass is the first one again, and finite."""
    nan = ("model=custom", "model.target=nets:NaNAt", "+model.kwargs.at=4", "trainer.evaluate_every=0")
    folder = crashed(tmp_path / "run", *nan, "precision=fp32")
    assert main([str(folder), "--trust"]) == 1
    output = capsys.readouterr().out
    assert "the replayed update is finite" in output
    assert "recorded: loss nan, gradient norm nan; replayed: loss" in output
    result = json.loads((folder / "replay.json").read_text())
    assert result["finite"] and result["first"] is None and result["recorded"]["loss"] == "NaN"


def test_what_cannot_be_replayed_is_refused_with_the_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = crashed(tmp_path / "run", *FAST)
    for arguments, message in [
        ([str(folder)], "holds no crash.pt: the run did not fail: it was completed, its verdict x (it holds .hydra"),
        ([str(tmp_path)], "must be the folder of a run"),
        ([str(tmp_path / "none")], "no such folder"),
        ([str(folder), "--max", "-1"], "--max=-1.0: must be > 0"),
        ([str(folder), "--maxx"], "see python -m gradlab.replay --help"),
    ]:
        assert main(arguments) == 2
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1, error
    (folder / "crash.pt").write_bytes(b"half of it")
    assert main([str(folder)]) == 2 and "cannot be read as a checkpoint" in capsys.readouterr().err


def test_a_changed_configuration_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = crashed(tmp_path / "run", *CRASH)
    overrides = [o for o in json.loads((folder / ".hydra" / "overrides.yaml").read_text()) if "epochs" not in o]
    (folder / ".hydra" / "overrides.yaml").write_text(json.dumps([*overrides, "seed=4"]))
    assert main([str(folder)]) == 0
    output = capsys.readouterr().out
    assert "note: seed is 4 in the configuration composed today; the run had 0" in output
    assert "note: trainer.epochs is 5" in output


def test_a_collapse_that_ends_with_an_update_that_came_through(tmp_path: Path) -> None:
    """What is kept is what the last streak began with, the weights before the updates that came through."""
    overrides = ("model=custom", "model.target=nets:Overflows", "+model.kwargs.passes=18", "trainer.evaluate_every=0")
    overrides = (*overrides, "precision=fp16", "precision.init_scale=1", "precision.check_every=20")
    seen: list[torch.Tensor] = []
    run = trainer(
        tmp_path / "run", *overrides, sinks=(FunctionSink(lambda line, layers: seen.append(weights(run.module))),)
    )
    outcome = run.run()
    assert outcome.status == "failed" and outcome.applied == 2 and not torch.equal(seen[0], seen[-1])
    crash = torch.load(tmp_path / "run" / "crash.pt", weights_only=True)
    assert crash["attempt"] == 1 and crash["update"]["precision"]["scale"] == 1
    assert torch.equal(torch.cat([v.flatten() for v in crash["model"].values()]), seen[0])
    assert torch.equal(weights(run.module), seen[-1])
    overflow = find_overflow(run)
    assert overflow is None and torch.equal(weights(run.module), seen[-1]), "its passes are over; the weights stay"


def test_a_streak_is_continued_by_a_resumption(tmp_path: Path) -> None:
    """Interrupted after a skipped update, and resumed: crash.pt is that of the run that was not."""
    overrides = (*CRASH, "trainer.epochs=3")
    trainer(tmp_path / "whole", *overrides).run()

    class Interrupted(Trainer):
        def stop_asked(self) -> bool:
            return self.update.attempts == 5

    outcome = trainer(tmp_path / "run", *overrides, cls=Interrupted).run()
    assert outcome.status == "interrupted"
    again = trainer(tmp_path / "run", *overrides)
    again.config = replace(again.config, resume=str(tmp_path / "run"))
    outcome = again.run()
    assert (outcome.status, outcome.first_failed_attempt, outcome.first_failed_epoch) == ("failed", 1, 1)
    kept = [torch.load(tmp_path / name / "crash.pt", weights_only=True) for name in ("whole", "run")]
    assert differences(*kept) == []


def test_a_failure_before_a_resumption_leaves_nothing(tmp_path: Path) -> None:
    trainer(tmp_path, *FAST, "trainer.updates=1").run()
    (tmp_path / "crash.pt").write_text("of then")
    again = trainer(tmp_path, *FAST)
    again.config = replace(again.config, resume=str(tmp_path))
    assert again.run().status == "completed" and not (tmp_path / "crash.pt").exists()


def test_an_overflow_of_one_batch_does_not_break_the_running_means_for_the_next() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    batch = torch.tensor([[1e5, 1.0], [-2e5, 0.5], [3.0, 1.0]]), torch.zeros(3, 3)
    for _ in range(2):
        found = first_overflow_forward(model, MeanSquaredError(), FP16().build(CPU), *batch)
        assert found is not None and (found.phase, found.module) == ("forward", "0") and found.of_data
    assert all(torch.isfinite(b).all() for b in model.buffers())
