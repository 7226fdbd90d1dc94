"""What the failing operation did: told by the values of its operands, in the forward and in the backward pass."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradlab.diagnosis.replay.overflow import Overflow
from gradlab.diagnosis.replay.replay import replay
from gradlab.update.loss import MeanSquaredError
from gradlab.update.precision import BF16, FP16, FP32, PrecisionOption

CPU = torch.device("cpu")


class Then(nn.Module):
    """A linear layer whose outputs are 1, 2, 3 for every sample, and code behind it."""

    def __init__(self, code: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.code = nn.Linear(2, 3), code
        with torch.no_grad():
            self.layer.weight.zero_()
            self.layer.bias.copy_(torch.tensor([1.0, 2.0, 3.0]))

    def forward(self, x: Tensor) -> Tensor:
        return self.code(self.layer(x))


def found(code: Callable[[Tensor], Tensor], option: PrecisionOption | None = None) -> Overflow:
    precision = (option or FP32()).build(CPU)
    overflow = replay(Then(code), MeanSquaredError(), precision, [(torch.ones(4, 2), torch.zeros(4, 3))]).first
    assert overflow is not None
    return overflow


def masked(x: Tensor) -> Tensor:
    return x.masked_fill(torch.ones_like(x, dtype=torch.bool), -torch.inf)


FORWARD: dict[str, Callable[[Tensor], Tensor]] = {
    "overflow": lambda x: x * 1e30 * 1e30,
    "0/0": lambda x: (x - x) / (x - x),
    "a division by zero": lambda x: x / (x - x),
    "log of a negative number": lambda x: (-x).log(),
    "log of 0": lambda x: (x - x).log(),
    "log1p of a number below -1": lambda x: torch.log1p(-x),
    "sqrt of a negative number": lambda x: (1 - x).sqrt(),
    "a fractional power of a negative number": lambda x: (-x) ** 0.5,
    "acos of a number outside of -1 to 1": lambda x: x.acos(),
    "a softmax whose entries are all masked": lambda x: masked(x).softmax(-1),
    "inf - inf": lambda x: masked(x) - masked(x).amax(-1, keepdim=True),
    "0/0: a mean of nothing": lambda x: x + x[:0].mean(),
}


@pytest.mark.parametrize("what", FORWARD)
def test_a_failure_in_the_forward_pass(what: str) -> None:
    overflow = found(FORWARD[what])
    assert (overflow.phase, overflow.failure) == ("forward", what) and overflow.derivative is None
    assert ("overflows first" in str(overflow)) == (what == "overflow") == (not overflow.undefined)
    assert what.split(":")[0] in str(overflow) or what == "overflow"


BACKWARD: dict[str, tuple[str, Callable[[Tensor], Tensor]]] = {
    "the root of a square at zero": ("0/0", lambda x: (x - 1).square().sqrt()),
    "a root at zero": ("a division by zero", lambda x: (x - 1).sqrt() + 1),
    "the unused branch of where": ("0/0", lambda x: torch.where(x > 1, (x - 1).log(), x)),
    "overflow": ("overflow", lambda x: (x * 1e-38).log() * 100),
}


@pytest.mark.parametrize("case", BACKWARD)
def test_a_failure_in_the_backward_pass(case: str) -> None:
    what, code = BACKWARD[case]
    overflow = found(code)
    assert (overflow.phase, overflow.failure) == ("backward", what)
    assert "the forward pass is finite" in str(overflow)
    assert overflow.derivative and (
        not overflow.undefined or f"the derivative of {overflow.derivative}" in str(overflow)
    )


def test_an_operation_in_place_is_judged_by_what_it_was_given() -> None:
    assert found(lambda x: (x - 3).log_()).failure == "log of a negative number"
    assert found(lambda x: (x - x).div_(x - x)).failure == "0/0"


@pytest.mark.parametrize("option", [FP16(init_scale=1.0), BF16(), FP32()], ids=["fp16", "bf16", "fp32"])
def test_a_product_too_large_for_its_type_is_an_overflow(option: PrecisionOption) -> None:
    """Also where plus and minus infinity make NaN within the product."""
    wide = torch.tensor([[1.0, -1.0]] * 3).repeat(1, 8) * (60000.0 if isinstance(option, FP16) else 3e38)
    overflow = found(lambda x: F.linear(x.repeat(1, 6)[:, :16] * 3, wide), option)
    assert overflow.failure == "overflow" and not overflow.undefined


def test_an_eps_that_fp16_rounds_to_zero_divides_zero_by_zero() -> None:
    code = lambda x: (x - x) / ((x - x).half() + 1e-8)  # noqa: E731
    assert found(code, FP16(init_scale=1.0)).failure == "0/0"
