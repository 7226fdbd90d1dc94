"""What is recorded of layers equals what plain loops measure, and recording does not change the run."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import differences, load, of_the_run, trainer, updates
from torch import nn

from gradlab.base.json_lines import read_lines
from gradlab.measure.activations import Activations, by_execution, dead_fraction, leaves, recording_order, statistics
from gradlab.measure.monitor import Full, NoMonitor, Summary
from gradlab.measure.record import Observed, Record, ratios, time_ratio
from gradlab.update.gradients import element_statistics, largest, tensor_norms

SMALL = ("data.samples=60", "data.batch_size=20", "trainer.epochs=2")


def layers_of(folder: Path) -> list[dict]:
    return list(read_lines(folder / "layers.jsonl"))


@pytest.mark.parametrize("monitor", ["none", "summary", "full"])
@pytest.mark.parametrize("model", ["sigmoid_mlp", "lstm"])
def test_recording_does_not_change_the_run(tmp_path: Path, monitor: str, model: str) -> None:
    small = (*SMALL, f"model={model}", f"data={'digits' if model == 'sigmoid_mlp' else 'adding'}")
    cadence = () if monitor == "none" else ("monitor.every=2", "monitor.step_every=2")
    trainer(tmp_path / "plain", *small, "monitor=none").run()
    trainer(tmp_path / "watched", *small, f"monitor={monitor}", *cadence).run()
    plain, watched = (of_the_run(load(tmp_path / name)) for name in ("plain", "watched"))
    for state in (plain, watched):
        state["random"][0].pop("python")  # a first import may draw from it
    assert differences(plain, watched) == []


def test_every_statistic_equals_a_plain_loop_over_parameters(tmp_path: Path) -> None:
    """Clipping acts, so that gradients before and after it differ; the reference is float64."""
    run = trainer(
        tmp_path, *SMALL, "clip=norm", "clip.max_norm=0.01", "optimizer=sgd", "monitor=full", "monitor.every=1"
    )
    run.config.monitor.step_every = 1
    grads: list[list[torch.Tensor]] = []
    weights: list[list[torch.Tensor]] = []
    measure = run.update.measure

    def spying() -> object:
        grads.append([p.grad.double() for p in run.update.params])
        weights.append([p.detach().double() for p in run.update.params])
        return measure()

    run.update.measure = spying  # type: ignore[method-assign]
    run.run()
    weights.append([p.detach().double() for p in run.update.params])
    _, *records = layers_of(tmp_path)
    assert len(records) == len(grads) == 6
    for i, record in enumerate(records):
        for j, (g, w, after) in enumerate(zip(grads[i], weights[i], weights[i + 1], strict=True)):
            close = {"rel": 1e-4, "abs": 1e-8}
            assert record["grad/layer"][j] == pytest.approx(g.norm().item(), **close)
            assert record["grad/mean"][j] == pytest.approx(g.mean().item(), **close)
            assert record["grad/std"][j] == pytest.approx(g.std(correction=0).item(), **close)
            assert record["grad/max"][j] == pytest.approx(g.abs().max().item(), **close)
            assert record["grad/nonfinite"][j] == 0
            moved = (after - w).norm().item()
            assert record["update/norm"][j] == pytest.approx(moved, rel=1e-3, abs=1e-7)
            assert record["update/ratio"][j] == pytest.approx(moved / w.norm().item(), rel=1e-3)
            assert record["grad/ratio"][j] == pytest.approx((g.norm() / w.norm()).item(), **close)
    for line, w, after in zip(updates(tmp_path), weights, weights[1:], strict=False):
        total = math.sqrt(sum(((a - b) ** 2).sum().item() for a, b in zip(w, after, strict=True)))
        assert line["update/ratio"] * line["param/norm"] == pytest.approx(total, rel=1e-3)


def test_non_finite_elements_are_counted() -> None:
    tensors = [torch.tensor([1.0, math.nan, math.inf]), torch.ones(4), torch.zeros(0)]
    found = element_statistics(tensors, tensor_norms(tensors))
    assert found["grad/nonfinite"].tolist() == [2, 0, 0]
    assert found["grad/max"][1:].tolist() == [1, 0]


def test_activations_of_the_last_forward_pass_in_the_order_of_execution() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5), nn.Tanh(), nn.Linear(5, 3), nn.Sigmoid())
    with torch.no_grad():
        model[0].bias[:3] = -100.0
        model[2].bias[:2] = 100.0
    x = torch.randn(32, 6)
    with recording_order(model) as called:
        model(x)
    modules = leaves(model, called)
    assert modules == ["0", "1", "2", "3", "4", "5"]
    seen = Activations(model, modules)
    with seen.watching():
        model(torch.zeros(2, 6))
        model(x)
    table = seen.table("cpu")
    values = [x]
    for layer in model:
        values.append(layer(values[-1]).detach())
    for row, y in zip(table, values[1:], strict=True):
        assert row[0].item() == pytest.approx(y.square().mean().sqrt().item(), rel=1e-5)
        assert row[1].item() == pytest.approx(y.abs().max().item())
    dead = (values[2] == 0).all(0).float().mean().item()
    assert dead >= 3 / 8 and table[1, 3].item() == pytest.approx(dead)
    slope = 1 - values[4].square()
    assert table[3, 2].item() == pytest.approx((slope < 0.05).float().mean().item()) and table[3, 2] >= 0.4
    assert table[[0, 2, 4]][:, 2:].isnan().all(), "a linear layer neither saturates nor dies"
    assert not model[0]._forward_hooks


def test_units_of_images_are_channels() -> None:
    y = torch.rand(4, 5, 3, 3)
    y[:, 2] = 0
    y[0, 1] = 0
    assert statistics(nn.ReLU(), y)[3].item() == pytest.approx(1 / 5)


class Moved(nn.Module):
    """Channels of a convolution last for what follows, as for attention."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.transpose(1, 2)


def kill(layer: Any, units: int) -> nn.Module:
    """A layer whose first units are far below zero at every input, and the others far above."""
    with torch.no_grad():
        layer.bias.fill_(100.0)[:units] = -100.0
    return layer


def dead(model: nn.Sequential, x: torch.Tensor) -> list[float]:
    """Dead units of the modules that have no weights, as they are seen."""
    with recording_order(model) as called:
        model(x)
    seen = Activations(model, leaves(model, called))
    for _ in range(2):  # the second forgets what the first ended with
        with seen.watching():
            model(x)
    return [v for v in seen.table("cpu")[:, 3].tolist() if v == v]


@pytest.mark.parametrize("length", [12, 6])
def test_units_of_a_convolution_are_its_channels_in_any_dimension(length: int) -> None:
    """(B, C, T), with as many steps as channels too; a unit is dead where its channel is zero in all of the batch."""
    torch.manual_seed(0)
    conv, x = kill(nn.Conv1d(3, 6, 3, padding=1), 2), torch.randn(8, 3, length)
    assert dead(nn.Sequential(conv, nn.ReLU()), x) == [pytest.approx(2 / 6)]
    plain = torch.relu(conv(x))
    assert (plain == 0).all(2).all(0).sum() == 2 and not (plain == 0).all(1).all(0).any()
    assert dead(nn.Sequential(conv, nn.ReLU(), nn.MaxPool1d(2), nn.Dropout(0.0)), x) == [pytest.approx(2 / 6)] * 3
    torch.nn.utils.parametrizations.weight_norm(conv)
    assert dead(nn.Sequential(conv, nn.ReLU()), x)[-1] == pytest.approx(2 / 6)
    for norm in (nn.BatchNorm1d(3), nn.GroupNorm(1, 3)):
        assert dead(nn.Sequential(kill(norm, 1), nn.ReLU()), x) == [pytest.approx(1 / 3)]
    head = kill(nn.Linear(6, 5), 4)
    moved = nn.Sequential(conv, Moved(), nn.ReLU(), head, nn.ReLU())
    assert dead(moved, torch.randn(8, 3, 12))[-2:] == [pytest.approx(2 / 6), pytest.approx(4 / 5)]
    gated = nn.Sequential(kill(nn.Conv1d(3, 8, 3, padding=1), 2), nn.GLU(1), nn.ReLU())
    assert dead(gated, x) == [0.0, pytest.approx(2 / 4)]


def test_units_of_a_linear_layer_are_the_last_in_four_dimensions_too() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(kill(nn.Linear(3, 6), 2), nn.ReLU())
    assert dead(model, torch.randn(2, 6, 4, 3)) == [pytest.approx(2 / 6)], "as many rows as units"
    x = torch.randn(2, 3, 5).abs()
    x[:, :, 0] = -1.0
    assert dead(nn.Sequential(nn.ReLU(), nn.Conv1d(3, 3, 1)), x) == [pytest.approx(1 / 5)], "no layer before it"
    volume = nn.Sequential(kill(nn.Conv3d(2, 4, 1), 1), nn.ReLU())
    assert dead(volume, torch.randn(2, 2, 3, 3, 3)) == [pytest.approx(1 / 4)]


class BackToFront(nn.Module):
    """Its head is defined first; `used` is called through its weight alone."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 2)
        self.body = nn.Linear(4, 4)
        self.inner = nn.Module()
        self.inner.used = nn.Linear(4, 4)
        self.unused = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(nn.functional.linear(self.body(x), self.inner.used.weight))


@pytest.mark.parametrize("shape", [(4, 3), (4, 5, 3), (4, 3, 2, 2), (4, 3, 1, 1)])
@pytest.mark.parametrize("odd", [0.0, -3e38, -torch.inf, torch.nan])
def test_the_largest_magnitude_and_the_dead_units_equal_a_plain_computation(shape: tuple[int, ...], odd: float) -> None:
    y = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    unit = 1 if len(shape) == 4 else len(shape) - 1
    units = y.movedim(unit, 0)  # (D, ...), a view
    units[0] = 0.0
    units[1] = -0.0
    units[1][(-1,) * (y.dim() - 1)] = odd  # the last of its elements
    torch.testing.assert_close(largest(y), y.abs().max(), rtol=0, atol=0, equal_nan=True)
    dead = [all(v == 0 for v in u.flatten().tolist()) for u in units]
    assert dead_fraction(y).item() == sum(dead) / len(dead)


def test_layers_are_ordered_as_they_run() -> None:
    model = BackToFront()
    with recording_order(model) as called:
        model(torch.randn(2, 4))
    layers = ["head", "body", "unused"]
    assert [layers[i] for i in by_execution(layers, called)] == ["body", "head", "unused"]
    assert by_execution(["", "head"], called) == [0, 1], "weights of the model itself are used as it begins"


@pytest.mark.parametrize("batch_first", [True, False])
def test_the_gradient_through_time_is_that_of_the_inputs_at_each_step(batch_first: bool) -> None:
    torch.manual_seed(0)
    rnn = nn.RNN(3, 5, batch_first=batch_first)
    x = torch.randn(7, 20, 3) if batch_first else torch.randn(20, 7, 3)
    names, params = (list(v) for v in zip(*rnn.named_parameters(), strict=True))
    observed = Observed(Summary(), rnn, names, params, [""])
    observed.recurrent = [""]
    record = Record(observed, steps=True)
    with record.forward():
        y = rnn(x)[0]
        (y[:, -1] if batch_first else y[-1]).square().sum().backward()
    wanted = x.clone().requires_grad_()
    y = rnn(wanted)[0]
    (y[:, -1] if batch_first else y[-1]).square().sum().backward()
    norms = [wanted.grad.select(1 if batch_first else 0, t).norm().item() for t in range(20)]
    ratio = time_ratio(record.through_time[""]).item()
    assert ratio == pytest.approx((norms[-1] + norms[-2]) / (norms[0] + norms[1]), rel=1e-4) and ratio > 10


def test_when_what_is_recorded() -> None:
    summary, full = Summary(every=5, step_every=10), Full(every=2, step_every=4)
    assert [u for u in range(1, 22) if summary.norms(u)] == [1, 6, 11, 16, 21]
    assert [u for u in range(1, 22) if summary.steps(u)] == [1, 11, 21] and not summary.elements(1)
    assert [u for u in range(1, 10) if full.elements(u)] == [1, 5, 9]
    assert not any(Summary(step_every=0).steps(u) or NoMonitor().norms(u) for u in range(1, 60))


def test_a_parameter_without_a_gradient_has_no_value_and_a_zero_one_no_ratio() -> None:
    assert ratios([1.0, None, 2.0], [2.0, 1.0, 0.0]) == [0.5, None, None]


def test_of_a_compiled_model_nothing_is_recorded_that_takes_hooks() -> None:
    """Compilation keeps the hooks that it saw first, and sees no later ones."""
    rnn = nn.RNN(3, 5)
    names, params = (list(v) for v in zip(*rnn.named_parameters(), strict=True))
    for compiled in (False, True):
        observed = Observed(Full(cost=False), rnn, names, params, [""], compiled)
        record = observed.record(1)
        assert record is not None and (record.activations is None) is compiled
        assert bool(observed.header()["modules"]) is bool(record.recurrent) is not compiled
        with record.forward([]):
            assert bool(rnn._forward_hooks or rnn._forward_pre_hooks) is not compiled


class Functional(nn.Module):
    """Calls no module: its layers' weights are used directly."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList(
            [nn.Parameter(0.1 * torch.randn(8, 64)), nn.Parameter(0.1 * torch.randn(10, 8))]
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.flatten(1) @ self.weights[0].T @ self.weights[1].T


def test_a_model_that_calls_no_module_is_recorded_and_inspected() -> None:
    model = Functional()
    with recording_order(model) as called:
        model(torch.randn(2, 64))
    assert Activations(model, leaves(model, called)).table("cpu").shape == (len(leaves(model, called)), 4)
