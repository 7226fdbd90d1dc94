"""A derivative of a mean is named where its size matters, and not where a factor makes up for it."""

import pytest
import torch
from torch import nn
from torch.autograd import grad
from torch.nn import functional as F
from torch.optim import Adam
from watched_loops import batches, marked

import gradlab


def kept_at_one(m, x, of=torch.mean):
    (slopes,) = grad(of(m(x)), x, create_graph=True)  # here
    return m(x).square().mean() + 10 * (slopes.norm(2, dim=1) - 1).square().mean()


def kept_at_one_by_a_root(m, x, of=torch.mean):
    slopes = grad(outputs=of(m(x)), inputs=x, create_graph=True)[0].view(16, -1)  # here
    return m(x).square().mean() + ((1 - (slopes.pow(2).sum(1) + 1e-12).sqrt()) ** 2).mean()


def equation(m, x, of=torch.mean):
    out = m(x)
    slopes = grad(of(out), x, create_graph=True)[0]  # here
    return (slopes[:, :1] + out).square().mean() + (m(torch.zeros(1, 8)) - 1).square().mean()


def forces(m, x, of=torch.mean):
    return F.mse_loss(-grad(of(m(x)), x, create_graph=True)[0], x.detach().cos())  # here


def doubled_gradient(m, x):
    """The weight of the penalty may be any."""
    (slopes,) = grad(m(x).square().mean(), x, create_graph=True)
    return m(x).square().mean() + 100 * slopes.square().sum() + (m(x)[:, 0] + slopes.abs().sum(1)).mean()


def of_two_orders(m, x, of=torch.mean):
    def by_input(out):
        return grad(of(out), x, create_graph=True)[0]  # here

    slopes = by_input(m(x))
    return (slopes[:, :1] - 0.1 * by_input(slopes[:, 1])[:, 1:2]).square().mean() + m(x).cos().mean()


def against_the_input(m, x, of=torch.mean):
    score = -grad(of(m(x)), x, create_graph=True)[0]  # here
    return (score + x).square().mean()


def of_one_order(m, x):
    slopes = grad(m(x).mean(), x, create_graph=True)[0]
    return (slopes[:, :1] - 0.5 * slopes[:, 1:2]).square().mean() + m(x).cos().mean()


def moved_along(m, x):
    """An input that is moved by a rate."""
    (slopes,) = grad(m(x).mean(), x, create_graph=True)
    away = x.detach() + slopes
    return m(x - 3.0 * slopes).square().mean() + m(away).mean()


def moved_with_momentum(m, x):
    point, speed = x, torch.zeros_like(x)
    for _ in range(3):
        speed = 0.9 * speed - grad(m(point).mean(), point, create_graph=True)[0]
        point = point + 0.1 * speed
    return m(point).square().mean()


def as_the_teacher(m, x):
    target = grad(TEACHER(x).mean(), x)[0]
    return F.mse_loss(grad(m(x).mean(), x, create_graph=True)[0], target)


def multiplied(m, x):
    return (16 * grad(m(x).mean(), x, create_graph=True)[0] - x.cos()).square().mean()


def of_one_sample(m, x):
    point = x[:1].detach().requires_grad_()
    return (grad(m(point).mean(), point, create_graph=True)[0].norm(dim=1) - 1).square().mean()


def by_the_weights(m, x):
    """As a look ahead does."""
    slopes = grad(m(x).square().mean(), m[2].weight, create_graph=True)[0]
    return F.linear(m[:2](x), m[2].weight - slopes).square().mean()


TEACHER = nn.Linear(8, 1)
WRONG = [kept_at_one, kept_at_one_by_a_root, equation, forces, of_two_orders, against_the_input]
RIGHT = [doubled_gradient, moved_along, moved_with_momentum, as_the_teacher, multiplied, of_one_sample, by_the_weights]
RIGHT += [of_one_order]


def faults_of(loss, tmp_path, **options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = Adam(model.parameters(), 1e-3)
    with gradlab.watch(model, optimizer, folder=tmp_path, quiet=True) as w:
        for x, _ in batches(3):
            optimizer.zero_grad()
            loss(model, x.requires_grad_(), **options).backward()
            optimizer.step()
    assert not w.broken
    return [(f.name, f.site[1]) for f in w.faults]


@pytest.mark.parametrize("loss", WRONG)
def test_a_derivative_of_a_mean(loss, tmp_path):
    assert faults_of(loss, tmp_path) == [("derivative-of-mean", marked(loss))]


@pytest.mark.parametrize("loss", WRONG)
def test_a_derivative_of_a_sum(loss, tmp_path):
    assert faults_of(loss, tmp_path, of=torch.sum) == []


@pytest.mark.parametrize("loss", RIGHT)
def test_a_derivative_whose_size_does_not_matter(loss, tmp_path):
    assert faults_of(loss, tmp_path) == []
