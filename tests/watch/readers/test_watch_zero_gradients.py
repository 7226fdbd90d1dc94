"""Weights whose gradient is exactly zero in every update: the line behind which it is; not of those that begin so."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import AdamW
from watched_loops import batches, marked, net

import gradlab


class Adapted(nn.Module):
    def __init__(self, first=0.0, bias=0.0):
        super().__init__()
        self.whole = net()
        self.down, self.up = nn.Parameter(first * torch.randn(8, 2)), nn.Parameter(torch.zeros(2, 4))
        self.gate, self.side = nn.Parameter(torch.zeros(())), nn.Linear(8, 4)
        nn.init.constant_(self.whole[0].bias, bias)


def low_rank(m, x, y, i):
    return F.cross_entropy(m.whole(x) + x @ m.down @ m.up, y)  # here


def low_rank_turned(m, x, y, i):
    return F.cross_entropy(m.whole(x) + F.linear(F.linear(x, m.down.T), m.up.mT), y)  # here


def dead(m, x, y, i):
    m.whole[0].bias.data.fill_(-100.0)
    hidden = m.whole[0](x)
    return F.cross_entropy(m.whole[2](torch.relu(hidden)), y)  # here


def cancelled(m, x, y, i):
    old, new = (torch.distributions.Categorical(logits=m.whole(x)).log_prob(y) for _ in range(2))
    ratio = (new - old).exp()  # here
    return torch.minimum(ratio * x[:, 0], ratio.clamp(0.8, 1.2) * x[:, 0]).mean()


def behind_a_gate(m, x, y, i):
    return F.cross_entropy(m.whole(x) + m.gate * m.side(x), y)


def later(m, x, y, i):
    return F.cross_entropy(m.whole(x), y) + max(0, i - 10) * m.side(x).square().mean()


def switched_off(m, x, y, i):
    return F.cross_entropy(m.whole(x), y) + 0.0 * m.side(x).square().mean()


def differences(m, x, y, i):
    """The last bias is in both sides."""
    out = m.whole[2](m.whole[0](x).tanh()) - m.whole[2](m.whole[0](-x).tanh())
    return F.softplus(out[:, 0] * x[:, 0]).mean()


def clamped(m, x, y, i):
    scale = (m.gate + 9).clamp(max=4.6).exp()  # here
    return F.cross_entropy(scale * m.whole(x), y)


def within_bounds(m, x, y, i):
    return F.cross_entropy((m.gate + 1).clamp(max=4.6).exp() * m.whole(x), y)


def comes_back(m, x, y, i):
    """The bound is lifted later."""
    return F.cross_entropy((m.gate + 3).clamp(max=2.0 + i / 4).exp() * m.whole(x), y)


def off_for_now(m, x, y, i):
    return F.cross_entropy(m.whole(x) + (m.gate + 1) * torch.zeros(4), y)


def twice(m, x, y, i):
    return F.softplus((m.whole(x)[:, 0] + m.gate.exp() - m.whole(-x)[:, 0] - m.gate.exp()) * x[:, 0]).mean()


def watched(loss, tmp_path, **given):
    torch.manual_seed(0)
    model = Adapted(**given)
    optimizer = AdamW(model.parameters(), 1e-2)
    with gradlab.watch(model, optimizer, folder=tmp_path, quiet=True) as w:
        for i, (x, y) in enumerate(batches(24)):
            optimizer.zero_grad()
            loss(model, x, y, i).backward()
            optimizer.step()
    assert not w.broken
    assert not any(p._backward_hooks for p in model.parameters())
    return [(f.name, f.site[1]) for f in w.faults]


@pytest.mark.parametrize("loss", [low_rank, low_rank_turned, dead, cancelled, clamped])
def test_a_gradient_that_is_always_zero(loss, tmp_path):
    found = watched(loss, tmp_path)
    assert ("zero-gradient", marked(loss)) in found and {line for _, line in found} == {marked(loss)}


SINGLE = [within_bounds, comes_back, off_for_now, twice]


@pytest.mark.parametrize("loss", [low_rank, low_rank_turned, behind_a_gate, later, switched_off, differences, *SINGLE])
def test_a_gradient_that_begins_at_zero_or_is_switched_off(loss, tmp_path):
    assert not watched(loss, tmp_path, first=1.0)
