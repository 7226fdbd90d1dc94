"""A loss that is an error with its sign reversed is named; an error that another network enlarges is not."""

import pytest
import torch
from torch import nn
from torch.distributions import Categorical
from torch.nn import functional as F
from torch.optim import SGD
from watched_loops import batches, marked, net

import gradlab


def enlarged(out, x, y):
    return -F.cross_entropy(out, y)  # here


def less_likely(out, x, y):
    return Categorical(logits=out).log_prob(y).sum() / 16  # here


def far_away(out, x, y):
    error = F.mse_loss(out, x[:, :4])
    return -error  # here


def faults_of(loss, tmp_path, maximize=False):
    model = net()
    optimizer = SGD(model.parameters(), 1e-3, maximize=maximize)
    with gradlab.watch(model, optimizer, folder=tmp_path, quiet=True) as w:
        for x, y in batches(8):
            optimizer.zero_grad()
            loss(model(x), x, y).backward()
            optimizer.step()
    assert not w.broken
    return [(f.name, f.site[1]) for f in w.faults]


@pytest.mark.parametrize("loss", [enlarged, less_likely, far_away])
def test_an_error_that_is_made_large(loss, tmp_path):
    assert faults_of(loss, tmp_path) == [("loss-reversed", marked(loss))]


RIGHT = {
    "likely": lambda out, x, y: -Categorical(logits=out).log_prob(y).mean(),
    "weighted": lambda out, x, y: (Categorical(logits=out).log_prob(y) * (1.0 - y)).mean(),
    "beside": lambda out, x, y: F.cross_entropy(out, y) - 0.1 * F.mse_loss(out, x[:, :4]),
    "return": lambda out, x, y: -Categorical(logits=out).log_prob(y).sum() * -200.0,
    "cost": lambda out, x, y: Categorical(logits=out).log_prob(y).sum() * 200.0,
    "return_of_normal_policy": lambda out, x, y: F.mse_loss(out, x[:, :4]) * -1.0,
    "return_of_actions": lambda out, x, y: F.cross_entropy(out, y) * -1.0,
    "error": lambda out, x, y: F.mse_loss(out, x[:, :4]) / 2,
}


@pytest.mark.parametrize("kind", RIGHT)
def test_other_signs(kind, tmp_path):
    assert faults_of(RIGHT[kind], tmp_path) == []


def test_what_is_maximized_is_no_error(tmp_path):
    assert faults_of(less_likely, tmp_path, maximize=True) == []


def test_two_networks_of_which_one_enlarges_the_error_of_the_other(tmp_path):
    maker, judge = nn.Linear(4, 8), nn.Linear(8, 4)
    first, second = SGD(judge.parameters(), 1e-3), SGD(maker.parameters(), 1e-3)
    with gradlab.watch([maker, judge], [first, second], folder=tmp_path, quiet=True) as w:
        for _, y in batches(8):
            made = maker(torch.randn(16, 4))
            second.zero_grad()
            (-F.cross_entropy(judge(made), y)).backward()
            second.step()
            first.zero_grad()
            F.cross_entropy(judge(made.detach()), y).backward()
            first.step()
    assert not w.broken
    assert w.faults == []
