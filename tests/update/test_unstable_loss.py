"""Textbook losses: equal to their stable forms where both are numbers, and where they stop being so."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from helpers import trainer, updates

from gradlab.base.option import Invalid
from gradlab.data.spec import Spec
from gradlab.update.unstable_loss import (
    FLOOR,
    KINDS,
    UnstableLoss,
    naive_division,
    naive_exp,
    naive_log,
    naive_sqrt,
    stable_division,
    stable_exp,
    stable_log,
    stable_sqrt,
)

CLASSES, VALUES = Spec("vectors", (3,), "classes", 5), Spec("vectors", (3,), "values", 1)


def slope(loss, x: float, target: float) -> float:
    at = torch.tensor([x], requires_grad=True)
    loss(at, torch.tensor([target])).sum().backward()
    return at.grad.item()


def test_both_logs_are_the_cross_entropy() -> None:
    logits, targets = torch.randn(64, 7) * 10, torch.randint(7, (64,))
    exact = logits.double()
    wanted = (exact.exp().sum(1).log() - exact[torch.arange(64), targets]).float()
    torch.testing.assert_close(naive_log(logits, targets), wanted, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(stable_log(logits, targets), wanted, rtol=1e-5, atol=1e-5)


def test_the_naive_log_is_infinite_from_a_lead_of_104_and_its_slope_from_89() -> None:
    lead = torch.tensor([88.0, 95.0, 104.0, 1e4])
    logits = torch.stack([torch.zeros(4), lead], dim=1).requires_grad_()
    losses = naive_log(logits, torch.zeros(4, dtype=torch.int64))
    assert losses.isfinite().tolist() == [True, True, False, False]
    losses.sum().backward()
    assert logits.grad.isfinite().all(1).tolist() == [True, False, False, False]
    torch.testing.assert_close(stable_log(logits, torch.zeros(4, dtype=torch.int64)), lead)


def test_relative_errors_agree_from_the_floor_on_and_only_the_stable_one_has_no_pole() -> None:
    p, t = torch.randn(1000) * 2, torch.randn(1000)
    exact = (((p - t).double() / p.double()) ** 2).float()
    torch.testing.assert_close(naive_division(p, t), exact)
    far = p.abs() >= FLOOR
    assert 0 < far.sum() < 1000
    torch.testing.assert_close(stable_division(p, t)[far], exact[far])
    assert (stable_division(p, t)[~far] < exact[~far]).all()
    assert math.isinf(naive_division(torch.zeros(1), torch.ones(1)))
    assert slope(stable_division, 0.0, 1.0) == pytest.approx(-2 / FLOOR**2)
    assert slope(stable_division, -FLOOR / 2, 1.0) < 0  # towards the target, on both sides of zero


def test_absolute_errors_agree_and_only_the_naive_one_has_no_slope_at_an_exact_hit() -> None:
    p, t = torch.randn(1000), torch.randn(1000)
    wanted = (p.double() - t.double()).abs().float()
    torch.testing.assert_close(naive_sqrt(p, t), wanted)
    torch.testing.assert_close(stable_sqrt(p, t), wanted)
    assert naive_sqrt(p, p).eq(0).all()  # the loss itself is fine
    assert math.isnan(slope(naive_sqrt, 1.5, 1.5)) and slope(stable_sqrt, 1.5, 1.5) == 0
    assert slope(naive_sqrt, 1.5, 1.0) == slope(stable_sqrt, 1.5, 1.0) == 1


def test_both_poisson_losses_are_the_likelihood_of_their_rate() -> None:
    rate, counts = torch.rand(1000, dtype=torch.float64) * 20 + 1e-3, torch.poisson(torch.full((1000,), 3.0))
    wanted = (rate - counts * rate.log()).float()
    torch.testing.assert_close(naive_exp(rate.log().float(), counts), wanted, rtol=1e-5, atol=1e-5)
    inverse = rate.expm1().log().float()  # softplus(inverse) = rate
    torch.testing.assert_close(stable_exp(inverse, counts), wanted, rtol=1e-4, atol=1e-4)


def test_the_naive_poisson_loss_is_infinite_from_89_on() -> None:
    x, counts = torch.tensor([88.0, 89.0, 1e4]), torch.full((3,), 2.0)
    assert naive_exp(x, counts).isfinite().tolist() == [True, False, False]
    torch.testing.assert_close(stable_exp(x, counts), (x.double() - 2 * x.double().log()).float())
    assert slope(stable_exp, 1e4, 2.0) == pytest.approx(1 - 2e-4)


def test_the_stable_poisson_loss_is_right_far_below_zero() -> None:
    x = torch.tensor([-1000.0, -120.0, -20.5, -19.5, -1.0])
    exact = x.double().exp().log1p()
    wanted = torch.where(x < -30, 0.0 - 3 * x, (exact - 3 * exact.log()).float())  # softplus(x) is exp(x) there
    torch.testing.assert_close(stable_exp(x, torch.full((5,), 3.0)), wanted)
    assert slope(stable_exp, -1000.0, 3.0) == -3


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stable", [False, True])
def test_the_option_sums_what_its_function_returns(kind: str, stable: bool) -> None:
    loss = UnstableLoss(kind=kind, stable=stable)
    if KINDS[kind].targets == "classes":
        outputs, targets = torch.randn(6, 5), torch.randint(5, (6,))
        loss.resolve(CLASSES)
    else:
        outputs, targets = torch.randn(6, 1) + 3, torch.ones(6, 1)
        loss.resolve(VALUES)
    total, count = loss(outputs.half(), targets)
    wanted = (KINDS[kind].stable if stable else KINDS[kind].naive)(outputs.half().float(), targets)
    torch.testing.assert_close(total, wanted.sum())
    assert total.dtype == torch.float32 and count == 6


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(Invalid, match="kind=cosine: must be one of log, division, sqrt, exp"):
        UnstableLoss(kind="cosine")
    with pytest.raises(Invalid, match=r"unstable \(kind=sqrt\): needs values, but the data provides classes"):
        UnstableLoss(kind="sqrt").resolve(CLASSES)
    with pytest.raises(Invalid, match="needs targets >= 0, but the data has -1"):
        UnstableLoss(kind="exp").check(torch.tensor([[3.0], [-1.0]]))
    with pytest.raises(Invalid, match="needs outputs of shape"):
        UnstableLoss(kind="sqrt").sum(torch.zeros(4, 1), torch.zeros(4))


@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=[pytest.mark.slow] if k in ("sqrt", "exp") else []) for k in KINDS]
)
def test_in_training_the_naive_loss_ends_the_run_and_the_stable_form_learns(kind: str, tmp_path: Path) -> None:
    experiment = f"+experiment=nan_loss_{kind}"
    run = trainer(tmp_path / "naive", experiment)
    assert run.run().status == "failed"
    assert all(p.isfinite().all() for p in run.module.parameters())  # nothing but the loss is at fault
    last = float(updates(tmp_path / "naive")[-1]["train/loss"])
    assert math.isfinite(last) == (kind == "sqrt")  # there only the gradient is not finite
    twin = trainer(tmp_path / "stable", experiment, "loss.stable=true")
    assert twin.run().status == "completed"
    losses = [float(line["train/loss"]) for line in updates(tmp_path / "stable")]
    assert all(map(math.isfinite, losses))
    assert sum(losses[-20:]) / 20 < losses[0] - 1
