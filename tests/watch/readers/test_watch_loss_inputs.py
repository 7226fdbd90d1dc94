"""Losses of shapes that broadcast, or of other numbers than they take, are found; what is meant is not."""

import pytest
import torch
from torch import nn
from torch.distributions import Normal, kl_divergence
from torch.nn import functional as F
from torch.optim import Adam
from watched_loops import batches, marked

import gradlab


def column_against_row(out, x, y):
    error = out[:, :1] - y.float()  # here
    return error.square().mean()


def row_against_column(out, x, y):
    return nn.HuberLoss()(out[:, 0], y[:, None].float())  # here


def advantage_in_a_column(out, x, y):
    policy = torch.distributions.Categorical(logits=out)
    action = policy.sample()
    return -(policy.log_prob(action) * (action == y).float()[:, None]).mean()  # here


def softmax_twice(out, x, y):
    return F.cross_entropy(out.softmax(-1), y)  # here


def sigmoid_twice(out, x, y):
    return nn.BCEWithLogitsLoss()(out.sigmoid()[:, 0], (y > 1).float())  # here


def softmax_twice_of_bfloat16(out, x, y):
    return F.cross_entropy(out.bfloat16().softmax(-1), y)  # here


def positive_logits(out, x, y):
    return F.cross_entropy(out.relu(), y)  # here


def targets_of_another_kind(out, x, y):
    return F.binary_cross_entropy_with_logits(out[:, 0], y.float())  # here


def logits_to_nll(out, x, y):
    return F.nll_loss(out, y)  # here


def probabilities_to_nll(out, x, y):
    return F.nll_loss(out.softmax(1), y)  # here


def normalised_over_the_batch(out, x, y):
    return F.nll_loss(out.log_softmax(0), y)  # here


def probabilities_to_kl(out, x, y):
    return F.kl_div(out.softmax(1), F.one_hot(y, 4).float(), reduction="batchmean")  # here


def logarithms_for_targets(out, x, y):
    return F.kl_div(out.log_softmax(1), (x[:, :4] * 5).log_softmax(1), reduction="batchmean")  # here


def labels_for_signs(out, x, y):
    return F.margin_ranking_loss(out[:, 0], out[:, 1], (y > 1).float())  # here


def softmax_over_the_batch(out, x, y):
    return F.cross_entropy(input=out.softmax(0), target=y)  # here


def twins(out, x):
    return F.normalize(torch.cat([out, out.roll(1, 1) * 0.9 + 0.1]), dim=-1)


def one_answer_for_all(out, x, y):
    one, two = twins(out, x).chunk(2)
    likeness = torch.tensor(2.0).exp() * torch.einsum("nc,mc->nm", one, two)
    return F.cross_entropy(likeness, torch.zeros(16).long())  # here


def normalised_over_samples(out, x, y, dim=0):
    one, two = F.normalize(out, dim=dim), F.normalize(out * x[:, :4], dim=dim)
    return F.cross_entropy(one @ two.T / 0.1, torch.arange(16))  # here


def with_itself(out, x, y, mask=False):
    z = twins(out, x)
    likeness = z @ z.T / 0.1
    if mask:
        likeness = likeness.masked_fill(torch.eye(32).bool(), -1e9)
    return F.cross_entropy(likeness, (torch.arange(32) + 16) % 32)  # here


def exchanged(out, x, y):
    return F.cross_entropy(F.one_hot(y, 4).float(), out.softmax(1))  # here


def frames(out):
    return out.repeat(6, 1).view(6, 16, 4)


def transcribed(given, targets, blank=0):
    lengths = torch.full((16,), 6), torch.full((16,), 2)
    return nn.CTCLoss(blank=blank, zero_infinity=True)(given, targets, *lengths)  # here


def logits_to_ctc(out, x, y):
    return transcribed(frames(out), torch.randint(1, 4, (16, 2)))  # here


def normalised_over_time(out, x, y):
    given = frames(out).log_softmax(0)  # here
    lengths = torch.full((16,), 6), torch.full((16,), 2)
    return F.ctc_loss(given, torch.randint(1, 4, (16, 2)), *lengths, zero_infinity=True)


def blanks_to_find(out, x, y):
    return transcribed(frames(out).log_softmax(-1), torch.randint(0, 4, (32,)))


def never_below_zero(out, x, y):
    return F.huber_loss(out.relu(), x[:, :4].log_softmax(1))  # here


def never_above_one(out, x, y):
    error = 255 * x[:, :4].sigmoid() - out.tanh()
    return (error**2).mean()  # here


def within_one(out, x, y):
    return F.l1_loss(out.clamp(0, 1), 255 * x[:, :4].sigmoid())  # here


def viewed_for_permuted(out, x, y):
    frames = out.reshape(2, 8, 4).clone()
    return F.cross_entropy(frames.view(2, 4, 8), y.view(2, 8))  # here


def pixels(out, x, y):
    image = F.conv2d(out[:, :, None, None].expand(-1, -1, 3, 3), torch.ones(4, 4, 1, 1))
    return F.cross_entropy(image.reshape(-1, 4), y.repeat_interleave(9))  # here


def softmax_before_log_softmax(out, x, y):
    return F.nll_loss(out.softmax(1).log_softmax(1), y)  # here


def sigmoid_of_a_relu(out, x, y):
    return F.binary_cross_entropy(out.relu().sigmoid()[:, 0], (y > 1).float())  # here


def over_another_dimension(out, x, y):
    return F.nll_loss(out.view(4, 4, 4).log_softmax(1).flatten(0, 1), y)  # here


WRONG = {
    "loss-broadcast": [column_against_row, row_against_column, advantage_in_a_column],
    "loss-input": [
        softmax_twice,
        sigmoid_twice,
        softmax_twice_of_bfloat16,
        positive_logits,
        targets_of_another_kind,
        logits_to_nll,
        probabilities_to_nll,
        normalised_over_the_batch,
        probabilities_to_kl,
        logarithms_for_targets,
        labels_for_signs,
        softmax_over_the_batch,
        one_answer_for_all,
        with_itself,
        normalised_over_samples,
        exchanged,
        logits_to_ctc,
        normalised_over_time,
        blanks_to_find,
        never_below_zero,
        never_above_one,
        within_one,
        viewed_for_permuted,
        pixels,
        softmax_before_log_softmax,
        sigmoid_of_a_relu,
        over_another_dimension,
    ],
}


def watched(loss, tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    rates = nn.Parameter(torch.randn(16))
    optimizer = Adam([*model.parameters(), rates], 1e-2)
    with gradlab.watch(model, optimizer, folder=tmp_path, quiet=True) as w:
        for x, y in batches(3):
            optimizer.zero_grad()
            (loss(model(x), x, y) + (torch.rand(16)[:, None] * rates).sin().mean()).backward()
            optimizer.step()
    assert not w.broken
    return w


@pytest.mark.parametrize("name, loss", [(name, loss) for name, losses in WRONG.items() for loss in losses])
@pytest.mark.filterwarnings("ignore:Using a target size")
def test_what_a_loss_is_given(name, loss, tmp_path):
    by_helper = "transcribed" in loss.__code__.co_names and loss is not logits_to_ctc
    place = transcribed if by_helper else loss
    assert [(f.name, f.site[1]) for f in watched(loss, tmp_path).faults] == [(name, marked(place))]


def kernel(a, b):
    return (a.unsqueeze(1) - b).abs().mean()


def energy_distance(out, x, y):
    return 2 * kernel(out[:, 0], x[:, 0]) - kernel(out[:, 0], out[:, 0])


def distance_of_functions(out, x, y):
    column = out[:, :1]
    return (column - x[:, 0]).abs().mean() - 0.5 * (column - out[:, 0]).abs().mean()


def ranking(out, x, y):
    scores = out[:, 0]
    return F.softplus(scores - scores[:, None])[y[:, None] > y].mean()


def queue_of_negatives(out, x, y):
    """With as many columns as rows."""
    positive = (out * x[:, :4]).sum(1, keepdim=True)
    return F.cross_entropy(torch.cat([positive, out @ torch.randn(4, 15)], 1), torch.zeros(16).long())


def of_prototypes(out, x, y):
    """One class for the whole batch, and as many classes as rows."""
    return F.cross_entropy(F.linear(out[:4], torch.eye(4)), torch.zeros(4).long())


CLASSES = nn.Parameter(torch.eye(4))
NAMES = nn.Linear(8, 4)


def cosine_classifier(out, x, y):
    """Of a batch that is all of one class, and of as many classes as rows."""
    return F.cross_entropy(F.linear(F.normalize(out[:4]), F.normalize(CLASSES)), torch.ones(4).long())


def names_of_classes(out, x, y):
    """The same, with classes that another network makes of their names."""
    return F.cross_entropy(out[:4] @ NAMES(x[4:8]).T, torch.ones(4).long())


def censored(out, x, y):
    """Times of which the negative ones are lower bounds."""
    p, times = F.softplus(out), torch.where(x[:, 4:] < 0, -x[:, :4].exp(), x[:, :4].exp())
    return torch.where(times > 0, F.mse_loss(p, times, reduction="none"), F.relu(-times - p).square()).mean()


def masked(out, x, y):
    """All that lie outside are."""
    targets = x[:, :4].log_softmax(1) * 9
    return (F.l1_loss(out.relu(), targets, reduction="none") * (targets > -1)).sum()


def some_missing(x):
    """Targets of which some are missing."""
    return torch.where(x[:, :4] > 0, x[:, :4].sigmoid(), -1.0)


def similar(out, x):
    """Scores of pairs that are never negative."""
    return 4 * (out @ x[:4, :4].T).relu()


def seldom_cut(out, x):
    """Counts of a layer's outputs, which are nearly all above 0."""
    return F.linear(out.sigmoid(), WEIGHT.exp()).relu()


WEIGHT = nn.Parameter(torch.zeros(4, 4))


RIGHT = {
    "similar": lambda out, x, y: F.cross_entropy(similar(out, x).relu(), y),
    "similar_shares": lambda out, x, y: F.nll_loss(similar(out, x).relu().log_softmax(1), y),
    "seldom_cut": lambda out, x, y: F.cross_entropy(seldom_cut(out, x), y),
    "one_score_for_all": lambda out, x, y: F.cross_entropy(
        F.linear(out[:, :, None], WEIGHT[:1, :1] + 1).squeeze(2).relu(), y
    ),
    "cosine": cosine_classifier,
    "names": names_of_classes,
    "queue": queue_of_negatives,
    "prototypes": of_prototypes,
    "normalised": lambda out, x, y: normalised_over_samples(out, x, y, dim=1),
    "masked": lambda out, x, y: with_itself(out, x, y, mask=True),
    "diagonal": lambda out, x, y: F.cross_entropy(out @ x[:, :4].T + (out @ out.T) * 0, torch.arange(16)),
    "shares": lambda out, x, y: F.cross_entropy(out, F.one_hot(y, 4).float()),
    "weights": lambda out, x, y: F.binary_cross_entropy_with_logits(out[:, 0], (y > 1).float(), torch.rand(16)),
    "padded": lambda out, x, y: transcribed(frames(out).log_softmax(-1), torch.tensor([[1, 2, 0]] * 16)),
    "last_blank": lambda out, x, y: transcribed(frames(out).log_softmax(-1), torch.randint(0, 3, (32,)), 3),
    "energy": energy_distance,
    "pairs": distance_of_functions,
    "ranking": ranking,
    "columns": lambda out, x, y: F.mse_loss(out[:, :1], y[:, None].float()),
    "quantiles": lambda out, x, y: (y[:, None] - out).relu().mean() + out.square().mean(),
    "logarithms": lambda out, x, y: F.cross_entropy(out.log_softmax(1), y) + F.nll_loss(out.log_softmax(1), y),
    "with_priors": lambda out, x, y: F.nll_loss(out.log_softmax(1) + torch.tensor([0.5, 1.0, 1.5, 2.0]), y),
    "distilled": lambda out, x, y: F.kl_div(out.log_softmax(1), x[:, :4].softmax(1)),
    "logged": lambda out, x, y: F.kl_div(out.log_softmax(1), x[:, :4].log_softmax(1), log_target=True),
    "bounded": lambda out, x, y: F.binary_cross_entropy_with_logits(5 * out.sigmoid()[:, 0], 1.1 * (y > 1).float()),
    "signs": lambda out, x, y: F.soft_margin_loss(out[:, 0], 2 * (y > 1).float() - 1),
    "within": lambda out, x, y: F.mse_loss(out.relu(), x[:, :4].abs()) + F.l1_loss(out.sigmoid(), x[:, :4].sigmoid()),
    "scaled": lambda out, x, y: F.mse_loss(9 * out.tanh(), x[:, :4]),
    "noisy": lambda out, x, y: F.mse_loss(out.relu(), x[:, :4].abs() + 0.02 * x[:, 4:]),
    "censored": censored,
    "masked_targets": masked,
    "weighted": lambda out, x, y: ((x[:, :4] > 0) * (F.softplus(out) - x[:, :4]) ** 2).mean(),
    "mostly_noise": lambda out, x, y: F.mse_loss(F.softplus(out), x[:, :4].abs() / 10 + x[:, 4:]),
    "missing": lambda out, x, y: (
        F.mse_loss(out.sigmoid(), some_missing(x), reduction="none") * (some_missing(x) > 0)
    ).mean(),
    "no_target": lambda out, x, y: (out.relu() - x[:, :4]).relu().mean() + (out.relu() + 2).square().mean(),
    "clamped": lambda out, x, y: F.l1_loss(out.clamp(-9, 9), x[:, :4]) + (x[:, :4] - out).square().mean(),
    "of_a_critic": lambda out, x, y: (out[:, 0] - out[:, 1]).mean() + (out - 1).mean(),
    "divergence": lambda out, x, y: kl_divergence(Normal(out, 1.0), Normal(x[:, :4], 1.0)).mean(),
    "members": lambda out, x, y: F.mse_loss(out, x[:, :1]) + F.mse_loss(out[:, :2], (y > 1)[:, None].float()),
    "turned": lambda out, x, y: F.cross_entropy(out.reshape(2, 8, 4).permute(0, 2, 1), y.view(2, 8)),
    "flattened": lambda out, x, y: F.cross_entropy(out.reshape(2, 8, 4).clone().view(-1, 4), y),
    "smoothed": lambda out, x, y: F.cross_entropy(out, 0.9 * F.one_hot(y, 4) + 0.025),
    "sigmoid": lambda out, x, y: F.binary_cross_entropy(out.tanh().sigmoid()[:, 0], (y > 1).float()),
    "by_rarity": lambda out, x, y: F.cross_entropy(out, y, weight=1 / (1 + torch.bincount(y, minlength=4))),
    "by_need": lambda out, x, y: F.cross_entropy(out[:, :2], 0 * y, weight=torch.tensor([3.0, 1.0])),
    "rare": lambda out, x, y: F.binary_cross_entropy_with_logits(
        out[:, 0], 1.0 * (y < 1), pos_weight=torch.ones(1) * 3
    ),
    "warm": lambda out, x, y: F.cross_entropy(twins(out, x) @ twins(out, x).T.detach() * 2, torch.arange(32)),
    "of_one_number": lambda out, x, y: (
        F.mse_loss(out[:, 0].relu(), x[:, 0].abs()) + F.l1_loss(out[:, 1].exp(), x[:, 1])
    ),
    "counts": lambda out, x, y: F.cross_entropy(out, (x[:, :4] > -1).float()),
    "half": lambda out, x, y: F.nll_loss(out.bfloat16().log_softmax(1), y),
    "costs": lambda out, x, y: F.cross_entropy(out, y, weight=1 + torch.bincount(y, minlength=4).float()),
    "regret": lambda out, x, y: ((out.softmax(1) * x[:, :4]).sum(1) - x[:, :4].amin(1)).mean(),
    "expected": lambda out, x, y: (out[:, 0] - x[:, 0]).mean() + (out[:, 0] - x[:, 0]).square().mean(),
    "towers": lambda out, x, y: F.nll_loss((out @ x[:, :4].T).log_softmax(0).T, torch.arange(16)) * 0 + out.mean(),
}


@pytest.mark.parametrize("kind", RIGHT)
@pytest.mark.filterwarnings("ignore:reduction", "ignore:Using a target size")
def test_what_is_meant_is_not_reported(kind, tmp_path):
    assert not watched(RIGHT[kind], tmp_path).faults


def standardised(out, x):
    return F.mse_loss(out.sigmoid(), x[:, :4])  # here


def noisy(out, x):
    """As many targets as before lie outside, and by chance."""
    return F.mse_loss(out.sigmoid(), (x[:, :4] > 1).float() + torch.randn(64, 4))


def reached(out, x):
    return F.mse_loss(out.tanh(), x[:, :4].tanh())


@pytest.mark.parametrize("loss", [standardised, noisy, reached])
def test_predictions_that_come_to_the_bound_of_their_range(loss, tmp_path):
    torch.manual_seed(0)
    model = nn.Linear(8, 4)
    optimizer = Adam(model.parameters(), 0.3)
    with gradlab.watch(model, optimizer, folder=tmp_path, quiet=True) as w:
        for _ in range(42):
            optimizer.zero_grad()
            x = torch.randn(64, 8)
            loss(model(x), x).backward()
            optimizer.step()
    assert not w.broken
    found = [("loss-input", marked(loss))] if loss is standardised else []
    assert [(f.name, f.site[1]) for f in w.faults] == found
