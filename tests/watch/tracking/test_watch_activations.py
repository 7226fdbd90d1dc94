"""A watched loop whose units are dead or saturated, or whose labels nothing is learnt of, is called so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import _get_current_dispatch_mode

import gradlab
from gradlab.watch.tracking.activation_windows import FIRST


def verdict(
    model: nn.Module, loss: Any, x: Tensor, y: Tensor, folder: Path, lr: float = 0.1, updates: int = 130
) -> str:
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    with gradlab.watch(model, optimizer, folder=folder, quiet=True) as watch:
        for i in range(updates):
            rows = torch.arange(32 * i, 32 * i + 32) % len(x)
            optimizer.zero_grad()
            loss(model(x[rows]), y[rows]).backward()
            optimizer.step()
    assert not watch.broken
    return json.loads((folder / "diagnosis.json").read_text())["verdict"]


def classes() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    x = torch.randn(320, 8)
    return x, (x[:, 0] > 0).long() + (x[:, 1] > 0)


class InFunctions(nn.Module):
    """Its activations are no modules."""

    def __init__(self, bias: float) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(8, 16), nn.Linear(16, 3)
        nn.init.constant_(self.one.bias, bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.two(F.relu(self.one(x)))


def test_dead_units_are_named_in_a_loop(tmp_path: Path) -> None:
    x, y = classes()
    assert verdict(InFunctions(0.0), F.cross_entropy, x, y, tmp_path / "alive") == "healthy"
    assert verdict(InFunctions(-50.0), F.cross_entropy, x, y, tmp_path / "dead") == "dead_units"


def test_no_hook_is_left_after_the_model_between_two_looks(tmp_path: Path) -> None:
    """It makes each call of the model slower."""
    model, (x, y) = InFunctions(0.0), classes()
    optimizer, hooks = torch.optim.SGD(model.parameters(), lr=0.1), []
    with gradlab.watch(model, optimizer, folder=tmp_path, quiet=True):
        for _ in range(FIRST + 3):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            hooks.append(len(model._forward_hooks))
            optimizer.step()
    assert hooks == [0] * (FIRST - 1) + [1, 0, 0, 0] and not model._forward_pre_hooks


def test_few_samples_kill_no_unit(tmp_path: Path) -> None:
    """Windows are as long as it takes to see 256 samples; with batches of 2 there is none."""
    x, y = classes()
    model = InFunctions(-2.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with gradlab.watch(model, optimizer, folder=tmp_path, quiet=True) as watch:
        for i in range(130):
            optimizer.zero_grad()
            F.cross_entropy(model(x[2 * i % 300 :][:2]), y[2 * i % 300 :][:2]).backward()
            optimizer.step()
    assert watch.loop.activations.inspection() is None


def test_looking_changes_nothing(tmp_path: Path) -> None:
    ends = []
    for watched in (False, True):
        torch.manual_seed(1)
        x, y = classes()
        model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 3))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

        def train(model: nn.Module = model, optimizer: Any = optimizer, x: Tensor = x, y: Tensor = y) -> None:
            for i in range(60):
                optimizer.zero_grad()
                F.cross_entropy(model(x[i : i + 64]), y[i : i + 64]).backward()
                optimizer.step()

        if watched:
            with gradlab.watch(model, optimizer, quiet=True, folder=tmp_path) as watch:
                train()
            assert watch.loop.activations.inspection() is not None
        else:
            train()
        ends.append([p.detach().clone() for p in model.state_dict().values()])
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))


@pytest.mark.parametrize("kind", ["classes", "labels"])
def test_labels_that_do_not_belong_to_the_inputs_are_not_learnt(kind: str, tmp_path: Path) -> None:
    """The loss falls from far above, to that of a constant answer."""
    x, y = classes()
    model = nn.Sequential(nn.Linear(8, 3))
    nn.init.normal_(model[0].weight, std=2.0)
    loss: Any = F.cross_entropy if kind == "classes" else lambda out, y: F.binary_cross_entropy_with_logits(out, y)
    targets = y if kind == "classes" else torch.stack([y == 0, y == 1, y == 2], 1).float()
    shuffled = targets[torch.randperm(len(targets))]
    assert verdict(model, loss, x, targets, tmp_path / "own", lr=1.0, updates=200) == "healthy"
    nn.init.normal_(model[0].weight, std=2.0)
    assert verdict(model, loss, x, shuffled, tmp_path / "others", lr=1.0, updates=200) == "not_learning"


@pytest.mark.parametrize(
    "loss",
    [
        lambda out, y: F.cross_entropy(out, y, weight=torch.tensor([1.0, 2.0, 3.0])),
        lambda out, y: F.cross_entropy(out, y, reduction="sum"),
        lambda out, y: 0.3 * F.cross_entropy(out, y),
        lambda out, y: F.cross_entropy(out, y) + out.square().mean(),
        lambda out, y: F.nll_loss(out, y),
        lambda out, y: F.cross_entropy(out, torch.zeros_like(y)),
        lambda out, y: F.binary_cross_entropy_with_logits(out, F.one_hot(y, 3) * 0.8 + 0.1),
        lambda out, y: F.mse_loss(out, F.one_hot(y, 3).float()),
        lambda out, y: (F.cross_entropy if y[0] else F.multi_margin_loss)(out, y),
    ],
    ids=["weights", "sum", "factor", "term", "no softmax", "one class", "soft labels", "regression", "now and then"],
)
def test_the_constant_answer_of_other_losses_is_not_known(loss: Any, tmp_path: Path) -> None:
    x, y = classes()
    model = nn.Linear(8, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    with gradlab.watch(model, optimizer, folder=tmp_path, quiet=True) as watch:
        for i in range(90):
            optimizer.zero_grad()
            loss(model(x[i : i + 32]), y[i : i + 32]).backward()
            optimizer.step()
    assert watch.loop.trackers[0].constant.loss(1.0) is None


def test_the_constant_answer_is_the_entropy_of_the_labels(tmp_path: Path) -> None:
    x, y = classes()
    model = nn.Linear(8, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gradlab.watch(model, optimizer, folder=tmp_path, quiet=True) as watch:
        for _ in range(90):
            optimizer.zero_grad()
            for half in (slice(0, 160), slice(160, 320)):
                (F.cross_entropy(model(x[half]), y[half]) / 2).backward()
            optimizer.step()
    seen = y[:160]  # one of eight passes is looked at: always the first half
    share = seen.bincount().double() / len(seen)
    expected = -(share * share.log()).sum().item()
    assert watch.loop.trackers[0].constant.loss(2.0) == pytest.approx(expected, rel=1e-5)


class OfSparse(nn.Module):
    """An activation of a tensor whose elements cannot be compared, or a forward pass that fails once."""

    def __init__(self, failing: BaseException | None = None) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(8, 16), nn.Linear(16, 3)
        self.failing, self.passes = failing, 0

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1
        if self.failing is None:
            return self.two(torch.relu(self.one(x).to_sparse()).to_dense())
        made = self.two(self.one(x))
        if self.passes == FIRST:
            raise self.failing
        return made


def test_activations_that_cannot_be_read_end_no_forward_pass(tmp_path: Path) -> None:
    x, y = classes()
    assert verdict(OfSparse(), F.cross_entropy, x, y, tmp_path, updates=FIRST + 5)


@pytest.mark.parametrize("failing", [RuntimeError("out of memory"), KeyboardInterrupt()])
def test_a_forward_pass_that_fails_while_it_is_looked_at_raises_its_own_error(
    failing: BaseException, tmp_path: Path
) -> None:
    """Nothing of the watch stays in the process."""
    x, y = classes()
    model = OfSparse(failing)
    with pytest.raises(type(failing)) as raised:
        verdict(model, F.cross_entropy, x, y, tmp_path, updates=FIRST + 5)
    assert raised.value is failing
    assert _get_current_dispatch_mode() is None
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())


def test_a_few_labels_of_many_classes_say_nothing_of_a_constant_answer(tmp_path: Path) -> None:
    """Their entropy is far below that of the data, and so is the loss that one answer to them would reach."""
    torch.manual_seed(0)
    places, groups = torch.randn(2, 16), torch.randint(0, 2, (5000,))
    x, y = places[groups], groups * 500 + torch.randint(0, 500, (5000,))
    model = nn.Linear(16, 1000)
    assert verdict(model, F.cross_entropy, x, y, tmp_path, lr=1.0) == "healthy"
