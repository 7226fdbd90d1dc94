"""Gradients of one loss that are zeroed before the pass of another: named only where nothing has looked at them."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD
from watched_loops import batches, loss_of, marked, net

import gradlab


def thrown(model, optimizer, looks):
    for x, y in batches(16):
        optimizer.zero_grad()
        x = x.requires_grad_(looks == "input")
        loss_of(model, (x, y)).backward(retain_graph=True)
        if looks == "norm":
            nn.utils.clip_grad_norm_(model.parameters(), float("inf"))
        if looks == "gradient":
            [p.grad.norm() for p in model.parameters()]
        if looks == "input":
            x = (x + 0.1 * x.grad.sign()).detach()
        if looks == "hook":
            model[0].weight.register_hook(lambda grad: None).remove()
        optimizer.zero_grad()  # here
        hidden = model(x)
        (F.mse_loss(hidden, hidden.detach() + 0.1 * torch.randn(16, 4)) + 0.1 * hidden.square().mean()).backward()
        optimizer.step()


@pytest.mark.parametrize("looks", ["", "norm", "gradient", "input", "hook"])
def test_a_gradient_that_is_thrown_away(looks, tmp_path):
    model = net()
    optimizer = SGD(model.parameters(), 0.1)
    with gradlab.watch(model, optimizer, folder=tmp_path, quiet=True) as watch:
        thrown(model, optimizer, looks)
    assert not watch.broken
    expected = [] if looks else [("zero-before-step", marked(thrown))]
    assert [(f.name, f.site[1]) for f in watch.faults] == expected


def test_warnings_and_modes_are_left_as_they_were(tmp_path):
    model = net()
    optimizer = SGD(model.parameters(), 0.1)
    with gradlab.watch(model, optimizer, folder=tmp_path, quiet=True):
        thrown(model, optimizer, "")
    assert not torch.overrides._get_current_function_mode_stack()


def test_a_loss_of_one_of_two_networks_that_is_thrown_away(tmp_path):
    torch.manual_seed(0)
    maker, judge = nn.Linear(4, 8), nn.Sequential(nn.Linear(8, 4), nn.Tanh(), nn.Linear(4, 1))
    m, j = SGD(maker.parameters(), 1e-3), SGD(judge.parameters(), 1e-3)
    with gradlab.watch([maker, judge], [m, j], folder=tmp_path, quiet=True) as watch:
        for x, _ in batches(16):
            made = maker(torch.randn(16, 4))
            j.zero_grad()
            F.softplus(-judge(x)).mean().backward()
            j.zero_grad()  # here
            F.softplus(judge(made.detach())).mean().backward()
            j.step()
            m.zero_grad()
            F.softplus(-judge(made)).mean().backward()
            m.step()
    found = [(f.name, f.site[1], f.optimizer) for f in watch.faults]
    here = marked(test_a_loss_of_one_of_two_networks_that_is_thrown_away)
    assert found == [("zero-before-step", here, 1)]


@pytest.mark.parametrize("watched", ["both", "judge"])
@pytest.mark.parametrize("judge_first", [True, False])
def test_a_gradient_that_another_optimizer_uses(watched, judge_first, tmp_path):
    """The maker's loss reaches the judge too, whose optimizer zeroes that before its own pass."""
    torch.manual_seed(0)
    maker, judge = nn.Linear(4, 8), nn.Sequential(nn.Linear(8, 4), nn.Tanh(), nn.Linear(4, 1))
    m, j = SGD(maker.parameters(), 1e-3), SGD(judge.parameters(), 1e-3)
    models, optimizers = ([maker, judge], [m, j]) if watched == "both" else (judge, j)
    with gradlab.watch(models, optimizers, folder=tmp_path, quiet=True) as watch:
        for x, _ in batches(16):
            made = maker(torch.randn(16, 4))
            m.zero_grad()
            F.softplus(-judge(made)).mean().backward()
            j.zero_grad()
            F.softplus(judge(made.detach()) - judge(x)).mean().backward()
            for each in (j, m) if judge_first else (m, j):
                each.step()
    assert not watch.broken
    assert watch.faults == []
