"""Flat activations are found by operation and by call, as they are where each is a module of its own."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradlab.diagnosis.inspection import ActivationOutput, outputs
from gradlab.measure.flat_units import FlatUnits

RELUS: dict[str, Callable[[Tensor], Tensor]] = {
    "nn.ReLU": nn.ReLU(),
    "in place": nn.ReLU(inplace=True),
    "F.relu": F.relu,
    "torch.relu": torch.relu,
    "method": lambda x: x.relu(),
    "F.relu_": lambda x: F.relu(x.clone(), inplace=True),
    "clamp": lambda x: x.clamp(min=0),
    "clamp_min": lambda x: x.clamp_min(0.0),
    "threshold": lambda x: F.threshold(x, 0.0, 0.0),
}


class Net(nn.Module):
    """Two layers of 8 units with code behind each; a layer's units have the given biases."""

    def __init__(self, code: Callable[[Tensor], Tensor], first: list[float], second: list[float]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.head, self.code = nn.Linear(8, 2), code
        with torch.no_grad():
            for layer, bias in zip(self.layers, (first, second), strict=True):
                layer.bias.copy_(torch.tensor(bias))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = self.code(layer(x))
        return self.head(x)


def seen(model: nn.Module, x: Tensor | None = None) -> list[ActivationOutput]:
    units = FlatUnits(model)
    x = torch.randn(32, 8, generator=torch.Generator().manual_seed(1)) if x is None else x
    with torch.no_grad(), units.watching():
        model(x)
    assert not any(m._forward_hooks for m in model.modules())
    return outputs(units.calls, len(x))


LIVE, DEAD = [0.0] * 8, [-1000.0] * 6 + [5.0] * 2


@pytest.mark.parametrize("how", RELUS)
def test_dead_units_are_found_by_operation_and_by_call(how: str) -> None:
    """Also where both layers share one module: the second call is dead, and the first is not."""
    alive = [5.0] * 8
    for first, second in ((alive, DEAD), (DEAD, alive)):
        calls = seen(Net(RELUS[how], first, second))
        assert [c.dead for c in calls] == [0.75 if bias is DEAD else 0.0 for bias in (first, second)]
        assert [(c.call, c.calls) for c in calls] == [(1, 2), (2, 2)] and calls[0].ends == "zero"
        assert all(c.saturated is None for c in calls) and "call 2 of 2" in calls[1].where


@pytest.mark.parametrize("code", [nn.ReLU6(), F.relu6, lambda x: x.clamp(0, 6), lambda x: F.hardtanh(x, 0.0, 6.0)])
def test_of_two_flat_ends_both_count(code: Callable[[Tensor], Tensor]) -> None:
    low, high = [-1000.0] * 5 + [1000.0] * 2 + [3.0], [-1000.0] * 3 + [1000.0] * 4 + [3.0]
    first, second = seen(Net(code, low, high))
    assert (first.dead, first.saturated) == (7 / 8, None) and (second.dead, second.saturated) == (3 / 8, 7 / 8)
    assert first.ends == "zero or 6"


@pytest.mark.parametrize(
    ("code", "kind"), [(torch.sigmoid, "Net"), (torch.tanh, "Net"), (nn.Tanh(), "Tanh"), (F.sigmoid, "Net")]
)
def test_smooth_ones_are_saturated_where_their_slope_is_small(code: Callable[[Tensor], Tensor], kind: str) -> None:
    first, second = seen(Net(code, LIVE, [50.0] * 4 + [-50.0] * 4))
    assert (first.dead, second.dead, second.saturated) == (None, None, 1.0) and first.saturated < 0.5
    assert first.kind == kind


def test_units_are_channels_of_images_and_the_last_dimension_of_sequences() -> None:
    conv = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())
    with torch.no_grad():
        conv[0].bias[:] = torch.tensor([-1000.0, 0, 0, 0])
    assert seen(conv, torch.randn(8, 3, 6, 6))[0].dead == 0.25
    linear = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    with torch.no_grad():
        linear[0].bias[:2] = -1000.0
    assert seen(linear, torch.randn(4, 8, 8))[0].dead == 0.25


def test_a_unit_is_dead_if_it_is_so_for_the_samples_of_all_passes() -> None:
    model = nn.Sequential(nn.Linear(1, 2, bias=False), nn.ReLU(), nn.Linear(2, 1), nn.Sigmoid())
    with torch.no_grad():
        model[0].weight[:] = torch.tensor([[1.0], [-1.0]])
        model[2].weight[:], model[2].bias[:] = 1.0, 0.0
    units = FlatUnits(model)
    shares = []
    for x in (100.0, 200.0, -0.5):
        with torch.no_grad(), units.watching():
            model(torch.full((1, 1), x))
        relu, sigmoid = outputs(units.calls, 3)
        shares.append((relu.dead, sigmoid.saturated))
    assert shares == [(0.5, 1.0), (0.5, 1.0), (0.0, pytest.approx(2 / 3))]


def test_what_is_no_activation_is_left_out() -> None:
    """The data's own clamping, bounds of something else, a single number."""
    code = lambda x: x.clamp(min=-1e9).clamp(max=5.0) * x.mean().relu()  # noqa: E731
    assert seen(Net(code, LIVE, LIVE)) == []
    model = Net(lambda x: x, LIVE, LIVE)
    model.register_forward_pre_hook(lambda m, inputs: (inputs[0].relu(),))
    assert seen(model) == []


def test_what_is_given_the_same_for_every_sample_is_known() -> None:
    """Also but for rounding, of sequences too; not of a tensor whose first dimension is another one."""
    x = torch.randn(16, 5, 8, generator=torch.Generator().manual_seed(1))
    mean = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    assert [c.same for c in seen(mean, x)] == [False]
    assert [c.same for c in seen(mean, x[:1].expand(16, 5, 8) * (1 + 1e-6 * torch.randn(16, 1, 1)))] == [True]
    units = FlatUnits(mean)
    with torch.no_grad(), units.watching():
        mean(x[:1].expand(16, 5, 8))
    assert [c.same for c in outputs(units.calls, 5)] == [False]
