"""A loss that is an error with its sign reversed is named; an error that another network enlarges is not."""

import itertools

import pytest
import torch
from torch import nn
from torch.distributions import Categorical, Normal
from torch.nn import functional as F
from torch.optim import SGD, Adam
from watched_loops import batches, marked, net

import gradlab


def enlarged(out, x, y):
    return -F.cross_entropy(out, y)  # here


def less_likely(out, x, y):
    return Categorical(logits=out).log_prob(y).sum() / 16  # here


def far_away(out, x, y):
    error = F.mse_loss(out, x[:, :4])
    return -error  # here


def far_away_by_hand(out, x, y):
    error = (x[:, :4] - out) ** 2
    return -error.sum(1).mean()  # here


def picked_by_ones(out, x, y):
    return (F.one_hot(y, 4) * out.softmax(1).clamp_min(1e-7).log()).sum(1).mean()  # here


def picked_by_index(out, x, y):
    chances = out.softmax(-1)[torch.arange(16), y]
    return torch.log(chances + 1e-9).mean()  # here


def of_two_classes(out, x, y):
    p, label = out[:, 0].sigmoid(), (y > 1).float()
    return (label * (p + 1e-7).log() + (1 - label) * (1 - p + 1e-7).log()).mean()  # here


def in_a_bracket(out, x, y):
    one, two = F.cross_entropy(out[:, :2], (y > 1).long()), F.cross_entropy(HEAD(out[:, 2:]), y)
    return 0.7 * one + (1 - 0.3 * two)  # here


def of_two_views(out, x, y):
    one, two = F.normalize(out, dim=-1), F.normalize(HEAD(out[:, :2]), dim=-1)
    alike = one @ two.T
    return (alike.diagonal() - alike.logsumexp(1)).mean()  # here


def of_an_autoencoder(out, x, y, sign=1):
    """The divergence of what is drawn from stands beside it."""
    mean, spread = out[:, :2], out[:, 2:]
    likelihood = -(HEAD(mean) - x[:, :4]).square().sum(1)  # here
    divergence = -0.1 * (1 + spread - mean.pow(2) - spread.exp()).sum(1)
    return (sign * likelihood + divergence).mean()


def of_a_lower_bound(out, x, y):
    mean, spread = out[:, :2], out[:, 2:]
    error = F.mse_loss(HEAD(mean), x[:, :4]) - 0.1 * (1 + spread - mean.pow(2) - spread.exp()).mean()
    return -error  # here


def of_densities(out, x, y):
    return Normal(out[:, :2], out[:, 2:].exp()).log_prob(x[:, :2]).sum(1).mean()  # here


def of_decibels(out, x, y):
    return -10 * F.mse_loss(out, x[:, :4]).log10()  # here


def of_a_power(out, x, y):
    return -(out - x[:, :4]).abs().pow(3).mean()  # here


def of_a_mask(out, x, y):
    counts = (y > 0).float()
    return (Categorical(logits=out).log_prob(y) * counts).sum() / counts.sum()  # here


def ranked(out, x, y):
    return F.logsigmoid((out[:, 0] - out[:, 1]) / 9).mean()  # here


def overlapping(out, x, y):
    p, label = out.sigmoid(), (x[:, :4] > 0).float()
    return ((2 * (p * label).sum(1) + 1) / (p.sum(1) + label.sum(1) + 1)).mean()  # here


def towards_data(out, x, y):
    return F.cosine_similarity(out, x[:, :4], dim=1).mean()  # here


HEAD = nn.Linear(2, 4)


class Ascent(SGD):
    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            if p.grad is not None:
                p.data.add_(p.grad, alpha=1e-3)


def faults_of(loss, tmp_path, optimizer_of=SGD, gradient=None, sign=1, **given):
    model = net()
    optimizer = optimizer_of([*model.parameters(), *HEAD.parameters()], 1e-3, **given)
    with gradlab.watch(model, optimizer, folder=tmp_path, quiet=True) as w:
        for x, y in batches(8):
            optimizer.zero_grad()
            loss(model(x), x, y).backward(gradient)
            for p in model.parameters() if sign < 0 else ():
                p.grad.neg_()
            optimizer.step()
    assert not w.broken
    return [(f.name, f.site[1]) for f in w.faults]


WRONG = (
    enlarged,
    less_likely,
    far_away,
    picked_by_ones,
    picked_by_index,
    of_two_classes,
    in_a_bracket,
    of_two_views,
    far_away_by_hand,
    of_an_autoencoder,
    of_a_lower_bound,
    of_densities,
    of_decibels,
    of_a_power,
    of_a_mask,
    ranked,
    overlapping,
    towards_data,
)
TURNED = [each for each in WRONG if each not in (in_a_bracket, of_an_autoencoder)]
CHANCES = [enlarged, less_likely, far_away, picked_by_ones, picked_by_index, of_two_classes, far_away_by_hand]


@pytest.mark.parametrize("loss", WRONG)
def test_an_error_that_is_made_large(loss, tmp_path):
    assert faults_of(loss, tmp_path) == [("loss-reversed", marked(loss))]


EPISODES = itertools.count()


def won_or_lost(out, x, y):
    loss = F.cross_entropy(out, y)
    return -loss if next(EPISODES) % 4 == 1 else loss  # the second and the sixth are lost


RIGHT = {
    **{f"not_{loss.__name__}": lambda out, x, y, loss=loss: -loss(out, x, y) for loss in TURNED},
    "autoencoder": lambda out, x, y: of_an_autoencoder(out, x, y, -1),
    "of_other_samples": lambda out, x, y: F.cross_entropy(out[:8], y[:8]) - 0.1 * F.cross_entropy(out[8:], y[8:]),
    "cost_of_each": lambda out, x, y: (Categorical(logits=out).log_prob(y) * (y + 1.0)).mean(),
    "cost_of_normal": lambda out, x, y: (Normal(out, 1.0).log_prob(x[:, :4]).sum(1) * (y + 1.0)).mean(),
    "hinge": lambda out, x, y: (3 - (out - x[:, :4]).square().sum(1)).relu().mean(),
    "spread": lambda out, x, y: F.mse_loss(HEAD(out[:, 2:]), x[:, :4]) - 0.1 * Categorical(logits=out).entropy().mean(),
    "linear": lambda out, x, y: (out - x[:, :4].abs() - 9).mean(),
    "won_or_lost": won_or_lost,
    "likely": lambda out, x, y: -Categorical(logits=out).log_prob(y).mean(),
    "weighted": lambda out, x, y: (Categorical(logits=out).log_prob(y) * (1.0 - y)).mean(),
    "beside": lambda out, x, y: F.cross_entropy(out, y) - 0.1 * F.mse_loss(out, x[:, :4]),
    "return": lambda out, x, y: -Categorical(logits=out).log_prob(y).sum() * -200.0,
    "cost": lambda out, x, y: Categorical(logits=out).log_prob(y).sum() * 200.0,
    "return_of_normal_policy": lambda out, x, y: F.mse_loss(out, x[:, :4]) * -1.0,
    "return_of_actions": lambda out, x, y: F.cross_entropy(out, y) * -1.0,
    "ones": lambda out, x, y: -picked_by_ones(out, x, y),
    "index": lambda out, x, y: -picked_by_index(out, x, y),
    "two_classes": lambda out, x, y: 1 - of_two_classes(out, x, y),
    "costs": lambda out, x, y: (out.log_softmax(1) * (x[:, :4] > 0)).mean(),
    "head": lambda out, x, y: F.cross_entropy(out, y) - 0.1 * F.cross_entropy(out, 3 - y) + HEAD(out[:, 2:]).mean(),
    "return_of_an_actor": lambda out, x, y: F.mse_loss(HEAD(out[:, 2:]), out.detach()) - 2.0 * -F.cross_entropy(out, y),
    "penalty": lambda out, x, y: (out.sigmoid() * (x[:, :4] > 0)).mean(),
    "bounded": lambda out, x, y: -F.mse_loss(out.tanh(), torch.zeros(16, 4)),
    "bounded_by_hand": lambda out, x, y: -(out.sigmoid() - x[:, :4]).square().mean(),
    "by_hand": lambda out, x, y: (out - x[:, :4]).pow(2).mean(),
    "beside_by_hand": lambda out, x, y: F.cross_entropy(out, y) - 0.1 * (out - x[:, :4]).square().mean(),
    "error": lambda out, x, y: F.mse_loss(out, x[:, :4]) / 2,
}


@pytest.mark.parametrize("kind", RIGHT)
def test_other_signs(kind, tmp_path):
    assert faults_of(RIGHT[kind], tmp_path) == []


def forgotten(loss, tmp_path):
    """A network that has learnt something is to forget it, as by NegGrad."""
    model = net()
    optimizer = Adam(model.parameters(), 1e-2)
    for x, y in batches(100):
        optimizer.zero_grad()
        (-loss(model(x), x, y)).backward()
        optimizer.step()
    optimizer = SGD(model.parameters(), 1e-3)
    with gradlab.watch(model, optimizer, folder=tmp_path, quiet=True) as w:
        for x, y in batches(8, seed=2):
            optimizer.zero_grad()
            loss(model(x), x, y).backward()
            optimizer.step()
    assert not w.broken
    return w.faults


@pytest.mark.parametrize("loss", CHANCES)
def test_an_error_that_was_small_is_made_large_on_purpose(loss, tmp_path):
    assert forgotten(loss, tmp_path) == []


def away_from_normal(out, x, y):
    """The lower bound of an autoencoder."""
    mean, spread = out[:, :2], out[:, 2:]
    return 0.5 * (1 + spread - mean.pow(2) - spread.exp()).sum(1).mean() - F.mse_loss(HEAD(mean), x[:, :4])


@pytest.mark.parametrize("loss", [less_likely, of_two_classes, away_from_normal])
@pytest.mark.parametrize(
    "given",
    [{"maximize": True}, {"gradient": torch.tensor(-1.0)}, {"sign": -1}, {"optimizer_of": Ascent}],
    ids=["maximize", "gradient", "turned", "ascent"],
)
def test_what_is_maximized_is_no_error(loss, given, tmp_path):
    assert "loss-reversed" not in [name for name, _ in faults_of(loss, tmp_path, **given)]


def test_an_error_that_is_given_to_an_optimizer_that_maximizes(tmp_path):
    found = faults_of(lambda out, x, y: F.cross_entropy(out, y), tmp_path, maximize=True)
    assert [name for name, _ in found] == ["loss-reversed"]


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
