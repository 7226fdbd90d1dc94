"""The module that overflowed first: known by construction, found in the order of execution, in every precision."""

import pytest
import torch
from torch import nn

from gradlab.diagnosis.replay import first_overflow
from gradlab.loss import CrossEntropy
from gradlab.precision import BF16, FP16, FP32, PrecisionOption

CPU = torch.device("cpu")


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


def found(model: Net, option: PrecisionOption):
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
    assert "last well: layers.1" in str(overflow)


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
    """Each of 256 samples gives a gradient that fits; their sum in the weight does not. A sum is 256 times a mean."""
    torch.manual_seed(1)
    x = torch.randn(256, 8)
    model, loss = Net((1.0, 1.0, 1.0)), CrossEntropy(reduction=reduction)
    overflow = first_overflow(model, loss, FP16(init_scale=scale).build(CPU), [(x, x.argmin(-1))])
    assert overflow is not None and (overflow.phase, overflow.module) == ("gradient", "layers.2.weight")
    assert first_overflow(model, loss, FP16(init_scale=scale / 64).build(CPU), [(x, x.argmin(-1))]) is None
    ranks = first_overflow(model, loss, FP16(init_scale=scale / 64).build(CPU), [(x, x.argmin(-1))], ranks=64)
    assert ranks == overflow
