"""A discriminator whose losses all have one label is named, and one that tells two apart in any way is not."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import Adam
from watched_loops import batches, marked

import gradlab

ONE, ZERO = torch.ones(16, 1), torch.zeros(16, 1)


def apart(judge, real, made, label):
    right = F.binary_cross_entropy_with_logits(judge(real), ONE)
    return right + F.binary_cross_entropy_with_logits(judge(made), label)  # here


def squared(judge, real, made, label):
    right = F.mse_loss(judge(real), ONE)
    return right + nn.MSELoss()(judge(made), label)  # here


def made_anew(judge, real, made, label):
    out = judge(real)
    right = F.binary_cross_entropy_with_logits(out, torch.ones_like(out))
    label = torch.ones(16, 1) if label is ONE else torch.zeros(16, 1)
    return right + F.binary_cross_entropy_with_logits(judge(made), label)  # here


def in_one_function(judge, real, made, label):
    def said(given, label):
        out = judge(given)
        return F.mse_loss(out, torch.full_like(out, 1.0 if label is ONE else 0.1))

    return said(real, ONE) + said(made, label)  # here


def joined(judge, real, made, label):
    labels = torch.cat([torch.ones(16, 1), torch.ones(16, 1) if label is ONE else torch.zeros(16, 1)])
    return F.binary_cross_entropy_with_logits(judge(torch.cat([real, made])), labels)  # here


def of_numbers(judge, real, made, label):
    right = ((judge(real) - 1) ** 2).mean()
    return right + ((judge(made) - (1 if label is ONE else 0)) ** 2).mean()  # here


def of_scores(judge, real, made, label):
    right = F.softplus(-judge(real)).mean()
    return right + F.softplus(-judge(made) if label is ONE else judge(made)).mean()  # here


def expanded(judge, real, made, label):
    one, out = judge(real), judge(made)
    right = F.mse_loss(one, NUMBER.expand_as(one))
    return right + F.mse_loss(out, (NUMBER if label is ONE else NUMBER - 1).expand_as(out))  # here


NUMBER = torch.tensor(1.0)


def by_hand(judge, real, made, label):
    """What is made is told apart by another function, without a label."""
    return F.binary_cross_entropy_with_logits(judge(real), ONE) + F.softplus(judge(made)).mean()


PAIRS = [apart, squared, made_anew, joined, of_numbers, of_scores, expanded]


def faults_of(loss, label, tmp_path, critic_last=False):
    torch.manual_seed(0)
    maker, judge = nn.Linear(4, 8), nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    first, second = Adam(judge.parameters(), 1e-3), Adam(maker.parameters(), 1e-3)
    with gradlab.watch([maker, judge], [first, second], folder=tmp_path, quiet=True) as w:
        for x, _ in batches(8):
            made = maker(torch.randn(16, 4))
            if critic_last:
                second.zero_grad()
                F.binary_cross_entropy_with_logits(judge(made), ONE).backward()
                second.step()
            first.zero_grad()
            loss(judge, x, made.detach(), label).backward()
            first.step()
            if not critic_last:
                second.zero_grad()
                F.binary_cross_entropy_with_logits(judge(made), ONE).backward()
                second.step()
    assert not w.broken
    return [(f.name, f.site[1]) for f in w.faults]


@pytest.mark.parametrize("loss", [*PAIRS, in_one_function])
def test_one_label_for_what_is_to_be_told_apart(loss, tmp_path):
    assert faults_of(loss, ONE, tmp_path) == [("one-target", marked(loss))]


def test_a_discriminator_that_steps_after_another_network(tmp_path):
    assert faults_of(made_anew, ONE, tmp_path, critic_last=True) == [("one-target", marked(made_anew))]
    assert faults_of(made_anew, ZERO, tmp_path, critic_last=True) == []


@pytest.mark.parametrize("loss, label", [*[(loss, ZERO) for loss in (*PAIRS, in_one_function)], (by_hand, ONE)])
def test_different_labels(loss, label, tmp_path):
    assert faults_of(loss, label, tmp_path) == []


def rare(x):
    return (x[:, :1] > 9).float()


def written(x):
    label = torch.zeros(16, 1)
    label[x[:, 0] > 9] = 1
    return label


@pytest.mark.parametrize("labels", [rare, written])
def test_two_views_of_samples_that_are_all_of_one_class_by_chance(labels, tmp_path):
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = Adam(model.parameters(), 1e-3)
    with gradlab.watch(model, optimizer, folder=tmp_path, quiet=True) as w:
        for x, _ in batches(8):
            label = labels(x)
            optimizer.zero_grad()
            loss = F.binary_cross_entropy_with_logits(model(x), label)
            (loss + F.binary_cross_entropy_with_logits(model(x + 0.1 * torch.randn_like(x)), label)).backward()
            optimizer.step()
    assert not w.broken
    assert w.faults == []
