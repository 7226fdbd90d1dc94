"""Values whose gradient ends though other terms train what made them: found, unless the gradient goes around."""

import pytest
import torch
from torch import nn
from torch.distributions import Categorical, Normal, kl_divergence
from torch.nn import functional as F
from torch.optim import Adam
from watched_loops import batches, marked

import gradlab


class Parts(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last, self.side = nn.Linear(8, 6), nn.Linear(6, 4), nn.Linear(6, 4)
        self.codes = nn.Parameter(torch.randn(12, 6))


class Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx, h):
        return h.round()

    @staticmethod
    def backward(ctx, g):
        return g


def drawn(m, x, y):
    around = Normal(m.first(x), 1.0)
    z = around.sample()  # here
    return F.cross_entropy(m.last(z), y) + kl_divergence(around, Normal(0.0, 1.0)).mean()


def drawn_by_sample(m, x, y):
    around = Normal(m.first(x), 1.0)
    z = around.sample()  # here
    away = kl_divergence(around, Normal(0.0, 1.0)).sum(1)
    return (F.cross_entropy(m.last(z), y, reduction="none") + away).mean()


def rounded_biases(m, x, y):
    """Straight-through of weights of one dimension."""
    codes = m.last.bias + (m.last.bias.round() - m.last.bias).detach()
    return F.cross_entropy(F.linear(m.first(x), m.last.weight, codes), y)


def quantised(m, x, y, around=False):
    h = m.first(x)
    index = torch.cdist(h, m.codes).argmin(1)  # here
    q = m.codes[index]
    aside = F.mse_loss(q, h.detach()) + F.mse_loss(h, q.detach())
    return F.cross_entropy(m.last(h + (q - h).detach() if around else q), y) + aside


def rounded(m, x, y):
    h = m.first(x)
    levels = torch.round(4 * h) / 4  # here
    return F.cross_entropy(m.last(levels), y) + F.cross_entropy(m.side(h), y)


def picked(m, x, y):
    h = m.first(x)
    return F.cross_entropy(m.last(F.one_hot(h.argmax(-1), 6).float()), y) + h.square().mean()  # here


def counted(m, x, y):
    out = m.last(m.first(x))
    hits = (out.sigmoid() > 0.5).float()  # here
    return 1 - (hits * x[:, :4]).sum() / (hits.sum() + 1) + 0.1 * F.cross_entropy(out, y)


def penalty_without_a_graph(m, x, y, create_graph=False):
    between = torch.randn_like(x).requires_grad_()
    (slope,) = torch.autograd.grad(m.last(m.first(between)).sum(), between, create_graph=create_graph)  # here
    return F.cross_entropy(m.last(m.first(x)), y) + (slope.norm(dim=1) - 1).square().mean()


def slope_in_an_error(m, x, y, create_graph=False):
    at = x.clone().requires_grad_()
    u = m.last(m.first(at))[:, 0]
    (slope,) = torch.autograd.grad(u.sum(), at, retain_graph=True, create_graph=create_graph)  # here
    return (slope[:, 0] - u).square().mean() + F.mse_loss(m.last(m.first(x))[:, 0], y.float())


def term_of_a_number(m, x, y):
    h = m.first(x)
    aside = F.mse_loss(m.side(h), x[:, :4])
    return F.cross_entropy(m.last(h), y) + 0.3 * aside.item()  # here


def term_of_a_new_tensor(m, x, y):
    h = m.first(x)
    aside = torch.tensor(F.mse_loss(m.side(h), x[:, :4]).item())  # here
    return F.cross_entropy(m.last(h), y) + 0.3 * aside + 0.1 * m.side(h).square().mean()


def detached_term(m, x, y):
    h = m.first(x)
    aside = F.mse_loss(m.side(h), x[:, :4]).detach()  # here
    return torch.stack([F.cross_entropy(m.last(h), y), 0.3 * aside]).sum()


def term_under_no_grad(m, x, y):
    with torch.no_grad():  # here
        aside = F.mse_loss(m.last(m.first(x)), x[:, :4])
    return F.cross_entropy(m.last(m.first(x)), y) + 0.3 * aside


WRONG = [slope_in_an_error, term_of_a_number, term_of_a_new_tensor, detached_term, term_under_no_grad]
WRONG += [penalty_without_a_graph, drawn, drawn_by_sample, quantised, rounded, picked, counted]


def of_a_policy(m, x, y):
    policy = Categorical(logits=m.first(x))
    action = policy.sample()
    value = m.last(F.one_hot(action, 6).float()).mean(1)
    return -(policy.log_prob(action) * value.detach()).mean() + F.mse_loss(value, (action == y).float())


def routed(m, x, y):
    h = m.first(x)
    shares = h.softmax(1)
    best = shares.argmax(1)
    out = m.last(h) * (shares.gather(1, best[:, None]) * (best[:, None] > 2))
    return F.cross_entropy(out, y) + (F.one_hot(best, 6).float().mean(0) * shares.mean(0)).sum()


def recurrent(m, x, y):
    """The next input is what was said before."""
    said = torch.cdist(m.first(x), m.codes)
    again = m.first(torch.cat([m.codes[said.argmax(1)], x[:, :2]], 1))
    return F.cross_entropy(m.last(again), y) + F.cross_entropy(said, y)


def small_losses_of_the_other(m, x, y):
    first = F.cross_entropy(m.first(x), y, reduction="none")
    second = F.cross_entropy(m.last(x[:, :6]), y, reduction="none")
    few = first.argsort()[:8]
    return first[second.argsort()[:8]].mean() + F.cross_entropy(m.last(x[few, :6]), y[few])


def frozen_since(m, x, y):
    """A term of weights that require no gradient any more has none."""
    term = F.cross_entropy(m.side(x[:, :6]), y)
    m.side.requires_grad_(False)
    return term + F.cross_entropy(m.side(m.first(x)), y)


def corrected_value(m, x, y):
    """The loss has the value of another one, and its own gradient."""
    loss = F.cross_entropy(m.last(m.first(x)), y)
    with torch.no_grad():
        value = (m.last(m.first(x)).argmax(1) != y).float().mean()
    return loss + value - loss.detach()


def corrected_in_one(m, x, y):
    loss = F.cross_entropy(m.last(m.first(x)), y)
    return loss + ((m.side(m.first(x)) > 0).float().mean() - loss).detach()


def trained_aside(m, x, y):
    """The sum is what is logged."""
    h = m.first(x)
    aside = F.mse_loss(m.side(h), x[:, :4])
    aside.backward(retain_graph=True)
    return F.cross_entropy(m.last(h), y) + aside.detach()


def of_the_worst_input(m, x, y):
    h = m.first(x)
    away = torch.zeros_like(h).requires_grad_()
    (slope,) = torch.autograd.grad(F.cross_entropy(m.last(h + away), y), away, retain_graph=True)
    return F.cross_entropy(m.last(h + slope), y) + F.cross_entropy(m.last(h), y)


def first_order_step(m, x, y):
    h = m.first(x)
    slopes = torch.autograd.grad(F.cross_entropy(m.last(h), y), [*m.last.parameters()], retain_graph=True)
    return F.cross_entropy(F.linear(h, *(p - 0.1 * g for p, g in zip(m.last.parameters(), slopes, strict=True))), y)


def ratio_of_one_sample(m, x, y):
    with torch.no_grad():
        before = Categorical(logits=m.first(x[:1])).log_prob(y[:1])
    return -(2 * (Categorical(logits=m.first(x[:1])).log_prob(y[:1]) - before).exp()).mean()


def balanced(m, x, y):
    h = m.first(x)
    one, two = F.cross_entropy(m.last(h), y), F.mse_loss(m.side(h), x[:, :4])
    return one / one.detach() + two / two.item()


def as_certain_as_right(m, x, y):
    """The mean probability is to be the share of right answers."""
    out = m.last(m.first(x))
    away = out.softmax(1).amax(1).mean() - (out.argmax(1) == y).float().mean()
    return F.cross_entropy(out, y) + away.square() + away * away


RIGHT = {
    "calibrated": as_certain_as_right,
    "slope": lambda m, x, y: slope_in_an_error(m, x, y, create_graph=True),
    "value": corrected_value,
    "value_in_one": corrected_in_one,
    "aside": trained_aside,
    "worst": of_the_worst_input,
    "first_order": first_order_step,
    "one_sample": ratio_of_one_sample,
    "balanced": balanced,
    "frozen": frozen_since,
    "penalty": lambda m, x, y: penalty_without_a_graph(m, x, y, create_graph=True),
    "straight_through": lambda m, x, y: quantised(m, x, y, around=True),
    "function": lambda m, x, y: F.cross_entropy(m.last(Rounded.apply(m.first(x))), y) + m.first(x).square().mean(),
    "gumbel": lambda m, x, y: F.cross_entropy(m.last(F.gumbel_softmax(m.first(x), hard=True)), y),
    "drawn": lambda m, x, y: F.cross_entropy(m.last(Normal(m.first(x), 1.0).rsample()), y) + m.first(x).mean(),
    "meant": lambda m, x, y: F.cross_entropy(m.last(m.first(x).detach().round()), y) + F.cross_entropy(m.first(x), y),
    "noise": lambda m, x, y: F.cross_entropy(m.last(torch.randn_like(m.first(x))), y) + m.first(x).square().mean(),
    "policy": of_a_policy,
    "biases": rounded_biases,
    "routed": routed,
    "recurrent": recurrent,
    "co_teaching": small_losses_of_the_other,
}


WHOLE_TERMS = {term_of_a_number, term_of_a_new_tensor, detached_term, term_under_no_grad}
"""They change nothing: what is left of a value that goes on into a network is of use."""


def watched(loss, tmp_path):
    model = Parts()
    optimizer = Adam(model.parameters(), 1e-2)
    with gradlab.watch(model, optimizer, folder=tmp_path, quiet=True) as w:
        for x, y in batches(4):
            optimizer.zero_grad()
            loss(model, x, y).backward()
            optimizer.step()
    assert not w.broken
    return w.faults


@pytest.mark.parametrize("loss", WRONG)
def test_a_value_goes_on_without_its_gradient(loss, tmp_path):
    faults = watched(loss, tmp_path)
    name = "term-of-nothing-trained" if loss in WHOLE_TERMS else "hard-value"
    assert [(f.name, f.site[1]) for f in faults] == [(name, marked(loss))]
    assert "codes" not in faults[0].detail  # they are trained


@pytest.mark.parametrize("kind", RIGHT)
def test_a_gradient_that_goes_around_is_seen(kind, tmp_path):
    assert not watched(RIGHT[kind], tmp_path)
