"""Terms of losses that train what they should not: found at their lines, and nothing in their correct twins."""

import pytest
import torch
from torch import nn
from torch.distributions import Categorical, Normal
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
    return -F.cosine_similarity(p, z, dim=-1).mean()


def of_twins(m, x, y, cut=False):
    one, two = m.body(x + 0.1 * torch.randn_like(x)), m.body(x + 0.1 * torch.randn_like(x))
    goals = (one.detach(), two.detach()) if cut else (one, two)
    return similar(m.predictor(one), goals[1]) / 2 + similar(m.predictor(two), goals[0]) / 2  # here


def of_normalised_twins(m, x, y, cut=False):
    one, two = (F.normalize(m.body(x + 0.1 * torch.randn_like(x)), dim=-1) for _ in range(2))
    apart = (one @ one.T).logsumexp(1).mean() if cut else 0
    return (2 - 2 * (one * two).sum(-1)).mean() + apart  # here


def of_an_autoencoder(m, x, y, cut=False):
    x = x.repeat(8, 1)
    mean, spread = m.policy(x), m.student(x)
    away = -0.5 * torch.sum(1 + spread - mean.pow(2) - spread.exp())
    error = F.mse_loss(m.body(x), x[:, :6], reduction="sum" if cut else "mean")  # here
    return error + away


def of_a_wide_autoencoder(m, x, y, cut=False):
    """Summed over each sample is the divergence alone."""
    x = x.repeat(4, 4)
    mean, spread = m.policy(x[:, :8]), m.student(x[:, :8])
    away = -0.5 * (1 + spread - mean.pow(2) - spread.exp()).sum(1).mean()
    out = F.linear(m.body(x[:, :8]), torch.ones(32, 6))
    error = F.binary_cross_entropy_with_logits(out, x.sigmoid())  # here
    return error + away / (32 if cut else 1)


def of_distributions(m, x, y, cut=False):
    x = x.repeat(4, 4)
    posterior = torch.distributions.Normal(m.policy(x[:, :8]), m.student(x[:, :8]).exp())
    away = torch.distributions.kl_divergence(posterior, torch.distributions.Normal(0.0, 1.0))
    out = F.linear(m.body(x[:, :8]), torch.ones(32, 6))
    error = F.mse_loss(out, x, reduction="sum" if cut else "mean")  # here
    return error / (len(x) if cut else 1) + away.sum(-1).mean()


def of_distributions_in_sum(m, x, y, cut=False):
    """An error that is averaged over samples and summed over features."""
    mean, spread = m.policy(x), m.student(x)
    away = -0.5 * (1 + spread - mean.pow(2) - spread.exp()).sum()  # here
    error = (m.body(x) - x[:, :6]).square().sum(1).mean()
    return error + away / (len(x) if cut else 1)


def of_a_weighed_sum(m, x, y, cut=False):
    x = x.repeat(8, 1)
    apart = (m.body(x) - x[:, :6]).abs().sum() / (x.shape[0] * 6 if cut else 1)
    return 10 * apart + m.policy(x).square().mean()  # here


def of_two_views(m, x, y, cut=False):
    views = torch.cat([x + 0.01 * torch.randn_like(x), x + 0.01 * torch.randn_like(x)])
    z = F.normalize(m.body(views), dim=1)
    n, each = len(x), torch.arange(2 * len(x))
    labels = each.roll(n) if cut else each.view(n, 2).flip(1).flatten()
    return F.cross_entropy((z @ z.T / 0.1).masked_fill(torch.eye(2 * n, dtype=torch.bool), -1e9), labels)  # here


def with_the_wrong_sign(m, x, y, cut=False):
    mean, spread = m.policy(x), m.student(x)
    away = 0.5 * (1 + spread - mean.pow(2) - spread.exp()).sum(1).mean()  # here
    return F.mse_loss(m.body(x), x[:, :6], reduction="sum") / len(x) + (-away if cut else away)


def of_a_mean(m, x, y, cut=False):
    loss = F.cross_entropy(m.policy(x), y)
    return loss / (1 if cut else x.shape[0])  # here


def of_squares(m, x, y, cut=False):
    error = (m.body(x) - x[:, :6]).square()
    return (error.sum() / 6 if cut else error.mean()) * (1 / 16)  # here


def of_the_seen(m, x, y, cut=False):
    """A mean over the entries that a mask leaves."""
    seen = x[:, :6] > -1
    error = (m.body(x) - x[:, :6]).square() * seen
    return error.sum() / seen.sum() / (6 if cut else x.shape[0])  # here


def of_classes_and_places(m, x, y, cut=False):
    def terms(x):
        places = F.smooth_l1_loss(m.body(x), x[:, :6], reduction="mean" if cut else "sum")  # here
        return {"places": places, "classes": F.cross_entropy(m.policy(x), y.repeat(4))}

    return sum(terms(x.repeat(4, 1)).values())


def of_an_average_error(m, x, y, cut=False):
    x = x.repeat(8, 1)
    error, away = (m.body(x) - x[:, :6]).abs().mean(), m.policy(x).square().sum()  # here
    return error + away * (1 / len(x) if cut else 1)


def of_a_policy(m, x, y, cut=False):
    policy = Categorical(logits=m.policy(x))
    gain = policy.log_prob(policy.sample()) * (y - y.float().mean())
    return -(gain.mean() + 0.01 * policy.entropy().mean() * (1 if cut else -1))  # here


def of_a_continuous_policy(m, x, y, cut=False):
    policy = Normal(m.policy(x), m.student.bias.exp())
    gain = policy.log_prob(x[:, :4]).sum(1) * (y - y.float().mean())
    return -gain.mean() + 0.01 * policy.entropy().sum(1).mean() * (-1 if cut else 1)  # here


def of_soft_values(m, x, y, cut=False):
    chances, values = m.policy(x).log_softmax(1), x[:, :4]
    bonus = 0.1 * chances
    return (chances.exp() * ((bonus if cut else -bonus) - values)).sum(1).mean()  # here


def of_parts_of_one_pass(m, x, y, cut=False):
    now, after = m.body(torch.cat([x, x + 0.1])).chunk(2)
    return (m.predictor(now) - (after.detach() if cut else after)).pow(2).mean()  # here


def of_places_and_a_sum_of_classes(m, x, y, cut=False):
    x, y = x.repeat(4, 1), y.repeat(4)
    loss = F.cross_entropy(m.policy(x), y, reduction="mean" if cut else "sum")  # here
    return loss + F.mse_loss(m.value(x)[:, 0], x[:, 0])


def of_a_live_ratio(m, x, y, cut=False):
    before, now = (Categorical(logits=m.policy(x)).log_prob(y) for _ in range(2))
    ratio = (now - (before.detach() if cut else before)).exp()  # here
    return -(ratio * (y - y.float().mean())).mean() + m.policy(x).square().mean()


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
    "mixed-reductions": [
        *(of_an_autoencoder, of_an_average_error, of_a_wide_autoencoder),
        *(of_distributions, of_distributions_in_sum, of_a_weighed_sum, of_classes_and_places),
        of_places_and_a_sum_of_classes,
    ],
    "loss-input": [of_two_views],
    "loss-reversed": [with_the_wrong_sign],
    "loss-divided-twice": [of_a_mean, of_squares, of_the_seen],
    "entropy-penalised": [of_a_policy, of_a_clipped_policy, of_a_continuous_policy, of_soft_values],
    "target-not-detached": [of_the_next_state, of_a_trajectory, of_a_teacher, of_a_live_ratio],
    "advantage-not-detached": [of_an_episode],
    "loss-without-data": [of_twins, of_normalised_twins, of_parts_of_one_pass],
}
NAMED = [(name, loss) for name, losses in TERMS.items() for loss in losses]


def faults_of(loss, tmp_path, model=None, updates=4):
    model = model or Parts()
    optimizer = Adam(model.parameters(), 1e-3)
    with gradlab.watch(model, optimizer, folder=tmp_path, quiet=True) as w:
        for x, y in batches(updates):
            optimizer.zero_grad()
            loss(model, x, y).backward()
            optimizer.step()
    assert not w.broken
    return w.faults


@pytest.mark.parametrize("name, loss", NAMED)
def test_a_term_that_trains_what_it_should_not(name, loss, tmp_path):
    line = marked(loss)
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


def of_equal_scores(loss):
    """Of a layer that begins at zero, in whose first updates all differences are zero."""

    def of_the_policy(m, x, y):
        with torch.no_grad():
            for p in m.policy.parameters():
                p.zero_()
        return loss(m.policy(x), m.policy(-x), y)

    return of_the_policy


def of_halves(loss):
    """Of two outputs of 32 samples, of 32 elements each."""

    def of_wide_outputs(m, x, y):
        x = x.repeat(4, 1)
        one, two = (F.linear(layer(x), torch.eye(32, 4)) for layer in (m.policy, m.student))
        return loss(one, two, x.repeat(1, 4))

    return of_wide_outputs


def of_latents(target, others=lambda m, x: 0.0):
    """An error of 16 elements that is a mean, beside a divergence that is summed over each sample."""

    def of_an_average(m, x, y):
        x = x.repeat(4, 1)
        mean, spread = m.policy(x), m.student(x)
        away = -0.5 * (1 + spread - mean.pow(2) - spread.exp()).sum(1).mean()
        return F.mse_loss(F.linear(m.body(x), torch.ones(16, 6)), target(x)) + away + others(m, x)

    return of_an_average


RIGHT = {
    "of_one_direction": of_latents(lambda x: 1.2 * x[:, :1].expand(-1, 16)),
    "of_labels": of_latents(lambda x: x.repeat(1, 2), lambda m, x: F.cross_entropy(m.policy(x), x[:, :4].argmax(1))),
    "of_a_weight": of_latents(lambda x: x.repeat(1, 2), lambda m, x: 30 * F.l1_loss(m.policy(x), x[:, :4])),
    "consistent_and_certain": of_halves(
        lambda a, b, x: F.mse_loss(a.softmax(1), x.softmax(1)) - ((p := a.softmax(1)) * p.log()).sum(1).mean()
    ),
    "disorder": of_halves(lambda a, b, x: F.mse_loss(b, x) - ((p := a.log_softmax(1)).exp() * p).sum(1).mean()),
    "likelihood": of_halves(lambda a, b, x: 0.5 * (b.exp() * (a - x).square() - b).sum(1).mean() + F.mse_loss(a, x)),
    "of_large_targets": of_halves(
        lambda a, b, x: F.mse_loss(b, 9 * x) + 0.5 * (b.exp() + a.square() - b - 1).sum(1).mean()
    ),
    "shifted": of_equal_scores(
        lambda z, _, y: -(z - z.max(-1, keepdim=True).values).exp().log_softmax(-1)[:, 0].mean()
    ),
    "ranking": of_equal_scores(lambda z, _, y: (z[:16, None, 0] - z[None, 16:, 0]).exp().mean()),
    "ranked_pairs": of_equal_scores(lambda z, other, y: (z - other)[:, 0].exp().mean()),
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
    "softmax_by_hand": lambda m, x, y: -(m.policy(x) - m.policy(x).logsumexp(1, keepdim=True)).exp()[:, 0].mean(),
    "apart": lambda m, x, y: F.cosine_similarity(m.body(x), m.body(-x)).mean(),
}


@pytest.mark.parametrize("kind", RIGHT)
def test_its_correct_twin(kind, tmp_path):
    assert not faults_of(RIGHT[kind], tmp_path)


class Weighed(Parts):
    def __init__(self):
        super().__init__()
        self.scales = nn.Parameter(torch.zeros(2))


def of_two(m, x, y):
    return F.cross_entropy(m.policy(x), y), F.mse_loss(m.body(x), x[:, :6])


def by_exponentials(m, x, y, cost=0):
    total = 0
    for scale, loss in zip(m.scales, of_two(m, x, y), strict=True):
        total = total + torch.exp(-scale) * loss + cost * scale  # here
    return total


def by_variances(m, x, y, cost=0):
    variances = 1 + m.scales.square() + m.scales.exp()
    return (torch.stack(of_two(m, x, y)) / (2 * variances)).sum() + cost * variances.log().sum() / 2  # here


@pytest.mark.parametrize("loss", [by_exponentials, by_variances])
def test_weights_of_losses_that_nothing_keeps_up(loss, tmp_path):
    found = faults_of(loss, tmp_path / "wrong", Weighed(), updates=8)
    assert [(f.name, f.site[1], f.detail) for f in found] == [("learnt-weight-unbounded", marked(loss), "scales")]
    assert not faults_of(lambda m, x, y: loss(m, x, y, cost=1), tmp_path / "right", Weighed(), updates=8)


def of_two_passes(m, x, y):
    sum(scale.exp().reciprocal() * loss for scale, loss in zip(m.scales, of_two(m, x, y), strict=True)).backward()
    return m.scales.sum()


def priced_in_a_hook(m, x, y):
    if not m.scales._backward_hooks:
        m.scales.register_hook(lambda g: g + 0.1)
    return by_exponentials(m, x, y)


def inverses(m, x, y):
    one, two = of_two(m, x, y)
    return (m.scales[0] + 2).exp() * one + two / (m.scales[0] + 2).exp()


KEPT_UP = {
    "cost_in_another_pass": of_two_passes,
    "floor": lambda m, x, y: ((1 + m.scales.sigmoid()) * torch.stack(of_two(m, x, y))).sum(),
    "clamp": lambda m, x, y: (m.scales.exp().clamp(min=0.1) * torch.stack(of_two(m, x, y))).sum(),
    "clamped": lambda m, x, y: ((-m.scales.clamp(max=3)).exp() * torch.stack(of_two(m, x, y))).sum(),
    "divided": lambda m, x, y: (torch.stack(of_two(m, x, y)) / m.scales.sigmoid()).sum(),
    "hook": priced_in_a_hook,
    "inverses": inverses,
    "shares": lambda m, x, y: (m.scales.softmax(0) * torch.stack(of_two(m, x, y))).sum(),
    "temperature": lambda m, x, y: F.cross_entropy(m.policy(x) * m.scales[0].exp(), y),
    "of_a_score": lambda m, x, y: (m.scales[0].exp() * m.policy(x)).mean(),
    "of_the_network_too": lambda m, x, y: m.scales[0].exp() * F.mse_loss(m.body(x) * m.scales[0].exp(), x[:, :6]),
}


@pytest.mark.parametrize("kind", KEPT_UP)
def test_learnt_weights_that_are_meant(kind, tmp_path):
    assert not faults_of(KEPT_UP[kind], tmp_path, Weighed(), updates=8)
