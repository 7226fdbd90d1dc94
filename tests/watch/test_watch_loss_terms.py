"""Terms of losses that train what they should not: found at their lines, and nothing in their correct twins."""

import pytest
import torch
from torch import nn
from torch.distributions import Categorical
from torch.nn import functional as F
from torch.optim import Adam
from watched_loops import batches, marked

import gradlab


class Parts(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.value = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
        self.policy, self.teacher, self.student = nn.Linear(8, 4), nn.Linear(8, 4), nn.Linear(8, 4)
        self.body, self.predictor = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 6)), nn.Linear(6, 6)


def of_the_next_state(m, x, y, cut=False):
    target = y + 0.9 * (x[:, 0] > -1) * m.policy(x.flip(1)).amax(1)  # here
    return F.smooth_l1_loss(m.policy(x).gather(1, y[:, None])[:, 0], target.detach() if cut else target)


def of_a_trajectory(m, x, y, cut=False):
    v = m.value(x)[:, 0]
    after = v[1:].detach() if cut else v[1:]
    error = y[:-1].float() + 0.9 * after - v[:-1]  # here
    return error.pow(2).mean()


def of_a_teacher(m, x, y, cut=False):
    goal = m.teacher(x).softmax(-1)
    soft = F.kl_div(m.student(x).log_softmax(-1), goal.detach() if cut else goal, reduction="batchmean")  # here
    return soft + F.cross_entropy(m.student(x), y)


def of_an_episode(m, x, y, cut=False):
    """The terms of its entropy are products with differences too."""
    steps = [Categorical(logits=m.policy(x + i)) for i in range(20)]
    chosen = torch.stack([step.log_prob(y) for step in steps])
    advantage = (y == 1).float() - m.value(x)[:, 0]
    gain = (chosen * (advantage.detach() if cut else advantage)).mean()  # here
    return advantage.square().mean() - gain - 0.01 * torch.stack([step.entropy() for step in steps]).mean()


def similar(p, z):
    return -F.cosine_similarity(p, z, dim=-1).mean()  # here


def of_twins(m, x, y, cut=False):
    one, two = m.body(x + 0.1 * torch.randn_like(x)), m.body(x + 0.1 * torch.randn_like(x))
    goals = (one.detach(), two.detach()) if cut else (one, two)
    return similar(m.predictor(one), goals[1]) / 2 + similar(m.predictor(two), goals[0]) / 2


def of_normalised_twins(m, x, y, cut=False):
    one, two = (F.normalize(m.body(x + 0.1 * torch.randn_like(x)), dim=-1) for _ in range(2))
    apart = (one @ one.T).logsumexp(1).mean() if cut else 0
    return (2 - 2 * (one * two).sum(-1)).mean() + apart  # here


def of_an_autoencoder(m, x, y, cut=False):
    x = x.repeat(8, 1)
    mean, spread = m.policy(x), m.student(x)
    away = -0.5 * torch.sum(1 + spread - mean.pow(2) - spread.exp())
    error = F.mse_loss(m.body(x), x[:, :6], reduction="sum" if cut else "mean")
    return error + away  # here


def of_an_average_error(m, x, y, cut=False):
    x = x.repeat(8, 1)
    error, away = (m.body(x) - x[:, :6]).abs().mean(), m.policy(x).square().sum()
    return error + away * (1 / len(x) if cut else 1)  # here


def of_a_policy(m, x, y, cut=False):
    policy = Categorical(logits=m.policy(x))
    gain = policy.log_prob(policy.sample()) * (y - y.float().mean())
    return -(gain.mean() + 0.01 * policy.entropy().mean() * (1 if cut else -1))  # here


def of_a_clipped_policy(m, x, y, cut=False):
    chances = m.policy(x).log_softmax(-1)
    chosen, advantage = chances.gather(1, y[:, None])[:, 0], y - y.float().mean()
    ratio = (chosen - chosen.detach()).exp()
    disorder = (chances.exp() * chances).sum(-1)
    gain = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
    return (0.01 * disorder * (1 if cut else -1) - gain).mean()  # here


TEACHER = nn.Linear(8, 4).requires_grad_(False)


def of_the_teacher_alone(m, x, y, cut=False):
    goal = TEACHER(x) / 2
    mine = m.student(x) / 2 if cut else goal
    soft = 4 * F.kl_div(mine.log_softmax(-1), goal.softmax(-1), reduction="batchmean")  # here
    return 0.9 * soft + 0.1 * F.cross_entropy(m.student(x), y)


TERMS = {
    "term-of-nothing-trained": [of_the_teacher_alone],
    "mixed-reductions": [of_an_autoencoder, of_an_average_error],
    "entropy-penalised": [of_a_policy, of_a_clipped_policy],
    "target-not-detached": [of_the_next_state, of_a_trajectory, of_a_teacher],
    "advantage-not-detached": [of_an_episode],
    "loss-without-data": [of_twins, of_normalised_twins],
}
NAMED = [(name, loss) for name, losses in TERMS.items() for loss in losses]


def faults_of(loss, tmp_path):
    model = Parts()
    optimizer = Adam(model.parameters(), 1e-3)
    with gradlab.watch(model, optimizer, folder=tmp_path, quiet=True) as w:
        for x, y in batches(4):
            optimizer.zero_grad()
            loss(model, x, y).backward()
            optimizer.step()
    assert not w.broken
    return w.faults


@pytest.mark.parametrize("name, loss", NAMED)
def test_a_term_that_trains_what_it_should_not(name, loss, tmp_path):
    line = marked(similar if loss is of_twins else loss)
    assert [(f.name, f.site[1]) for f in faults_of(loss, tmp_path)] == [(name, line)]


def both_ways(m, x, y):
    one, two = m.student(x), m.teacher(x)
    there = F.kl_div(one.log_softmax(-1), two.softmax(-1), reduction="batchmean")
    return there + F.kl_div(two.log_softmax(-1), one.softmax(-1), reduction="batchmean")


def variances_kept(m, x, y):
    one, two = (m.body(x + 0.1 * torch.randn_like(x)) for _ in range(2))
    return F.mse_loss(one, two) + sum(F.relu(1 - z.std(0)).mean() for z in (one, two))


def of_a_small_part(m, x, y):
    """A factor was chosen, or what is added up are no samples."""
    x = x.repeat(8, 1)
    decay = sum(p.square().sum() for p in m.body.parameters())
    return F.mse_loss(m.body(x), x[:, :6]) + 1e-3 * m.policy(x).square().sum() + decay


def of_each_sample(m, x, y):
    """Sums over features, and a mean over samples."""
    x = x.repeat(4, 1)[:8].repeat(1, 8)
    out = F.linear(x[:, :8], m.body[0].weight).repeat(1, 4)
    apart = 2 * F.mse_loss(out, x, reduction="sum") / 8
    within = (F.mse_loss(out, x, reduction="none") / 8).sum()
    return apart + within + out.tanh().square().mean()


def certain(m, x, y):
    """As in semi-supervised learning."""
    return F.cross_entropy(m.policy(x), y) + 0.1 * Categorical(logits=m.policy(-x)).entropy().mean()


def frozen_for_a_while(m, x, y):
    m.teacher.requires_grad_(False)
    return F.cross_entropy(m.policy(x), y) + F.cross_entropy(m.teacher(x), y)


def logged(m, x, y):
    F.mse_loss(TEACHER(x), x[:, :4]).item()
    return F.cross_entropy(m.policy(x), y)


RIGHT = {
    "frozen_for_a_while": frozen_for_a_while,
    "logged": logged,
    "small_part": of_a_small_part,
    "of_each_sample": of_each_sample,
    "certain": certain,
    **{loss.__name__: lambda m, x, y, loss=loss: loss(m, x, y, cut=True) for _, loss in NAMED},
    "mutual": both_ways,
    "variances": variances_kept,
    "centred": lambda m, x, y: F.mse_loss(F.normalize(m.body(x), dim=0), F.normalize(m.body(-x), dim=0)),
    "differences": lambda m, x, y: (m.value(x)[:, 0] - m.value(-x)[:, 0] - y).square().mean(),
    "other_data": lambda m, x, y: F.mse_loss(m.body(x), m.body(-x)) + F.cross_entropy(m.policy(x), y),
    "apart": lambda m, x, y: F.cosine_similarity(m.body(x), m.body(-x)).mean(),
}


@pytest.mark.parametrize("kind", RIGHT)
def test_its_correct_twin(kind, tmp_path):
    assert not faults_of(RIGHT[kind], tmp_path)
