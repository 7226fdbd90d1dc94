"""A softmax over another dimension than the one that is added up is named; routing, pooling and clusters are not."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import Adam
from watched_loops import batches, marked

import gradlab


def pooled(m, x, y, dim=0, other=1):
    shares = m.score(x).softmax(dim=dim)  # here
    return (shares * x).sum(dim=other)


def pooled_by_product(m, x, y, dim=0):
    shares = m.score(x).softmax(dim).transpose(1, 2)  # here
    return (shares @ x)[:, 0]


def pooled_by_name(m, x, y, dim=0):
    shares = m.score(x).softmax(dim=dim)  # here
    return torch.sum(input=shares * x, dim=1)


def attended(m, x, y, dim=-2):
    likeness = m.last(x) @ m.last(x).mT / 2
    return (F.softmax(likeness, dim=dim) @ x).mean(1)  # here


def attended_by_name(m, x, y, dim=1):
    likeness = torch.einsum("bid,bjd->bij", m.last(x), m.last(x))
    return torch.einsum("bij,bjd->bid", likeness.softmax(dim), x).mean(1)  # here


def attended_by_heads(m, x, y, dim=1):
    heads = m.last(x).view(16, 2, 2, 2).transpose(1, 2)
    shares = (heads @ heads.mT).softmax(dim)  # here
    return (shares @ heads).transpose(1, 2).flatten(2).mean(1)


def pooled_by_rows(m, x, y, dim=0):
    shares = m.score(x)[..., 0].softmax(dim)  # here
    return torch.bmm(shares.unsqueeze(1), x)[:, 0]


def faults_of(summary, tmp_path):
    torch.manual_seed(0)
    model = nn.ModuleDict({"score": nn.Linear(4, 1), "last": nn.Linear(4, 4)})
    model.score, model.last = model["score"], model["last"]
    optimizer = Adam(model.parameters(), 1e-3)
    with gradlab.watch(model, optimizer, folder=tmp_path, quiet=True) as w:
        for x, y in batches(3):
            optimizer.zero_grad()
            F.cross_entropy(model.last(summary(model, x.view(16, 2, 4), y)), y).backward()
            optimizer.step()
    assert not w.broken
    return [(f.name, f.site[1]) for f in w.faults]


def gated_afterwards(m, x, y):
    likeness = m.last(x) @ m.last(x).mT
    return ((F.softmax(likeness, dim=-2) @ x) * m.score(x).sigmoid()).mean(1)  # here


def scaled_afterwards(m, x, y):
    likeness = m.last(x) @ m.last(x).mT
    return ((F.softmax(likeness, dim=-2) @ x) / 2).mean(1)  # here


def gated(m, x, y, dim=0):
    shares = m.last(x).softmax(dim)  # here
    return F.linear((shares * x).flatten(1), torch.eye(8)[:4])


WRONG = [gated, pooled, pooled_by_name, pooled_by_product, attended, scaled_afterwards, gated_afterwards]
WRONG += [attended_by_name, attended_by_heads, pooled_by_rows]


@pytest.mark.parametrize("summary", WRONG)
def test_weights_that_are_normalised_over_something_else(summary, tmp_path):
    assert faults_of(summary, tmp_path) == [("softmax-axis", marked(summary))]


def routed(m, x, y):
    """The weights of a part sum to 1 over the capsules that it goes to, here in the first dimension."""
    shares = (m.score(x)[..., 0] * torch.ones(3, 1, 1)).cumsum(0).softmax(0)
    return (shares[..., None] * x).sum(2).mean(0)


def clustered(m, x, y):
    shares = (m.score(x) * torch.arange(3)).softmax(-1)
    return (shares.mT @ x).mean(1)


def sorted_and_back(m, x, y):
    """As of a soft permutation."""
    order = (m.last(x) @ m.last(x).mT).softmax(-1)
    return (order.transpose(1, 2) @ (order @ x).tanh()).mean(1)


def as_many_clusters_as_places(m, x, y):
    shares = m.last(x)[..., :2].mT.softmax(1)
    return (shares @ x).mean(1)


def divided_afterwards(m, x, y):
    """As external attention does: normalised over the queries, and the sums by their weights."""
    shares = (m.last(x) @ m.last(x).mT).softmax(-2)
    return ((shares @ x) / (1e-6 + shares.sum(-1, keepdim=True))).mean(1)


def multiplied_afterwards(m, x, y):
    shares = (m.last(x) @ m.last(x).mT).softmax(-2)
    return ((1 / shares.sum(-1, keepdim=True)) * (shares @ x)).mean(1)


def normalised_afterwards(m, x, y):
    """Parts compete for the samples, and what a sum of them is multiplied by is taken out."""
    shares = m.score(x).softmax(0)
    return F.layer_norm((shares * x).sum(1), (4,))


def compared_both_ways(m, x, y):
    """Each row and each column of similarities is one of choices."""
    likeness = m.last(x[:, 0]) @ m.last(x[:, 1]).mT
    return F.linear(likeness * likeness.softmax(0), torch.ones(4, 16))


RIGHT = {
    "compared_both_ways": compared_both_ways,
    "gated_parts": lambda m, x, y: gated(m, x, y, dim=1),
    "weighed_samples": lambda m, x, y: F.linear(m.score(x[:, 0]).softmax(0) * x[:, 0], torch.eye(4)),
    "divided_afterwards": divided_afterwards,
    "multiplied_afterwards": multiplied_afterwards,
    "normalised_afterwards": normalised_afterwards,
    "sorted": sorted_and_back,
    "back": lambda m, x, y: (x.mT @ (m.last(x) @ m.last(x).mT).softmax(-1)).mT.mean(1),
    "as_many": as_many_clusters_as_places,
    "attended_by_name": lambda m, x, y: attended_by_name(m, x, y, dim=-1),
    "attended_by_heads": lambda m, x, y: attended_by_heads(m, x, y, dim=-1),
    "pooled_by_rows": lambda m, x, y: pooled_by_rows(m, x, y, dim=1),
    "pooled": lambda m, x, y: pooled(m, x, y, dim=1),
    "by_name": lambda m, x, y: pooled_by_name(m, x, y, dim=1),
    "steps_first": lambda m, x, y: pooled(m, x.transpose(0, 1), y, dim=0, other=0),
    "product": lambda m, x, y: pooled_by_product(m, x, y, dim=1),
    "attended": lambda m, x, y: attended(m, x, y, dim=-1),
    "routed": routed,
    "clustered": clustered,
    "gated": lambda m, x, y: (m.last(x).softmax(-1) * x).sum(1),
}


@pytest.mark.parametrize("kind", RIGHT)
def test_other_weights(kind, tmp_path):
    assert faults_of(RIGHT[kind], tmp_path) == []


def by_index(out, y, dim):
    return -out.softmax(dim)[torch.arange(16), y].log().mean()  # here


def by_gathering(out, y, dim):
    return -F.log_softmax(out, dim).gather(1, y[:, None]).mean()  # here


def flattened(out, y, dim):
    shares = out.view(4, 4, 4).softmax(2 if dim else 0).reshape(-1, 4)  # here
    return -(shares[torch.arange(16), y] + 1e-9).log().mean()


def of_a_teacher(out, y, dim):
    known = (3.0 * F.one_hot(y, 4)).softmax(dim)  # here
    return F.kl_div(out.log_softmax(1), known, reduction="batchmean")


def of_a_student(out, y, dim):
    known = (3.0 * F.one_hot(y, 4)).log_softmax(1)
    mine = F.log_softmax(out, dim=dim)  # here
    return F.kl_div(mine, known, reduction="batchmean", log_target=True)


@pytest.mark.parametrize("loss", [by_index, by_gathering, flattened, of_a_teacher, of_a_student])
@pytest.mark.parametrize("dim", [0, 1])
def test_classes_that_are_normalised_over_the_samples(loss, dim, tmp_path):
    torch.manual_seed(0)
    model = nn.Linear(8, 4)
    optimizer = Adam(model.parameters(), 1e-3)
    with gradlab.watch(model, optimizer, folder=tmp_path, quiet=True) as w:
        for x, y in batches(3):
            optimizer.zero_grad()
            loss(model(x), y, dim).backward()
            optimizer.step()
    assert not w.broken
    assert [(f.name, f.site[1]) for f in w.faults] == ([] if dim else [("softmax-axis", marked(loss))])


def test_a_divergence_of_two_orders_of_samples(tmp_path):
    def over_the_samples(m, x, y):
        known = (3.0 * F.one_hot(y, 4)).softmax(0)
        divergence = F.kl_div(m.last(x[:, 0]).log_softmax(0), known, reduction="sum")
        return m.last(x[:, 0]) + divergence

    assert faults_of(over_the_samples, tmp_path) == []
