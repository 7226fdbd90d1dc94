"""Targets that were drawn apart from the input are named; augmentation and mixtures are not."""

import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import Adam
from watched_loops import batches, marked

import gradlab


def noised(x, noise=None):
    share = torch.linspace(0.9, 0.1, 10)[torch.randint(10, (len(x),))][:, None]
    return share.sqrt() * x + (1 - share).sqrt() * (torch.randn_like(x) if noise is None else noise)


def other_noise(m, x, y):
    noise = torch.randn_like(x)
    return F.mse_loss(m.same(noised(x)), noise)  # here


def other_noise_squared(m, x, y):
    x, noise = torch.randn(16, 8).cumsum(1), torch.randn(16, 8)
    error = noise - m.same(noised(x))
    return error.pow(2).mean()  # here


def other_rows(m, x, y):
    order, other = torch.randperm(16), torch.randperm(16)
    return F.cross_entropy(m.last(x[order[:8]]), y[other[:8]])  # here


def pooled(m, x, y):
    """As many features as rows: what pools over them leaves the rows."""
    order, other = torch.randperm(16), torch.randperm(16)
    x = F.avg_pool1d(x[order[:8]][:, None], 1)
    return F.cross_entropy(m.last(x.flatten(1)), y[other[:8]])  # here


def drawn_in_a_function(m, x, y):
    def sample():
        return x[torch.randint(16, (8,))], y[torch.randint(16, (8,))]  # here

    x, y = sample()
    return F.cross_entropy(m.last(x), y)


def faults_of(loss, tmp_path):
    torch.manual_seed(0)
    model = nn.ModuleDict({"same": nn.Linear(8, 8), "last": nn.Linear(8, 4)})
    model.same, model.last = model["same"], model["last"]
    optimizer = Adam(model.parameters(), 1e-3)
    with gradlab.watch(model, optimizer, folder=tmp_path, quiet=True) as w:
        for x, y in batches(3):
            optimizer.zero_grad()
            loss(model, x, y).backward()
            optimizer.step()
    assert not w.broken
    return [(f.name, f.site[1]) for f in w.faults]


@pytest.mark.parametrize("loss", [other_noise, other_noise_squared, other_rows, pooled, drawn_in_a_function])
def test_what_was_drawn_twice_is_not_the_same(loss, tmp_path):
    assert faults_of(loss, tmp_path) == [("unrelated-target", marked(loss))]


def split_apart(*tables):
    return [table[torch.randperm(64)].split(16) for table in tables]


def sliced_apart(*tables):
    return [[table[i : i + 16] for i in range(0, 64, 16)] for table in (t[torch.randperm(64)] for t in tables)]


def left_in_order(x, y):
    """As `zip(x[order].split(16), y.split(16))`: the labels are not shuffled."""
    order = torch.randperm(64)
    return x[order].split(16), [y[i : i + 16].float().long() for i in range(0, 64, 16)]  # here


def ordered_outside(*tables):
    """As by NumPy: what is picked of each has another order."""
    orders = [np.random.default_rng(i).permutation(64) for i in range(2)]
    return [[t[order[i : i + 16]] for i in range(0, 64, 16)] for t, order in zip(tables, orders, strict=True)]


def shuffled_lists(*tables):
    return [table[random.Random(i).sample(range(64), 64)].split(16) for i, table in enumerate(tables)]


def tensors_of_arrays(*tables):
    orders = [torch.as_tensor(np.random.default_rng(i).permutation(64)) for i in range(2)]
    return [table[order].split(16) for table, order in zip(tables, orders, strict=True)]


def left_in_order_outside(x, y):
    return x[np.random.default_rng(0).permutation(64)].split(16), y.float().long().split(16)


def target_made_in_order(x, y):
    """The rows of the target are permuted outside PyTorch."""
    order, labels = np.random.default_rng(0).permutation(64), y.numpy().copy()
    return x[order].split(16), torch.from_numpy(labels[order]).split(16)


def target_listed_in_order(x, y):
    order, labels = random.Random(0).sample(range(64), 64), y.tolist()
    return x[order].split(16), torch.from_numpy(np.array([labels[j] for j in order])).split(16)


def target_written_in_order(x, y):
    order = np.random.default_rng(0).permutation(64)
    y, labels = y.clone(), y.numpy()[order]
    y[:] = torch.from_numpy(labels)
    return x[order].split(16), y.split(16)


def mixed_with_itself(x, y):
    """The whole set: one of both losses has the labels in their first order."""
    return (0.7 * x + 0.3 * x[torch.randperm(64)]).split(16), y.split(16)


def ordered_outside_together(*tables):
    order = np.random.default_rng(0).permutation(64)
    return [[table[order[i : i + 16]] for i in range(0, 64, 16)] for table in tables]


def sorted_apart(x, y):
    """As of quantiles: nothing is drawn, each is sorted by itself."""
    return x[np.argsort(x[:, 0].numpy())].split(16), y[np.argsort(y.numpy())].split(16)


def both_left_in_order(x, y):
    _ = x[torch.randperm(64)]
    return x.split(16), y.split(16)


def of_the_shuffled_input(x, y):
    x = x[torch.randperm(64)]
    return x.split(16), x[:, :4].argmax(1).split(16)


def shuffled_within_each_part(x, y):
    order = torch.randperm(16)
    return [part[order] for part in x.split(16)], [part[order] for part in y.split(16)]


def neighbours_of_each_part(x, y):
    """As a batch mixed with itself: the labels of both are used."""
    return [0.9 * part + 0.1 * part[torch.randperm(16)] for part in x.split(16)], y.split(16)


def one_label(x, y):
    return x[torch.randperm(64)].split(16), torch.zeros_like(y).split(16)


def split_together(*tables):
    order = torch.randperm(64)
    return [table[order].split(16) for table in tables]


def picked_together(*tables):
    order = torch.randperm(64)
    return [[table[order[i : i + 16]] for i in range(0, 64, 16)] for table in tables]


TABLES = [split_apart, sliced_apart, ordered_outside, shuffled_lists, tensors_of_arrays, left_in_order]
TABLES += [left_in_order_outside]
WRONG = len(TABLES)
TABLES += [sorted_apart, ordered_outside_together, split_together, picked_together, both_left_in_order]
TABLES += [target_made_in_order, target_listed_in_order, target_written_in_order, mixed_with_itself]
TABLES += [of_the_shuffled_input, shuffled_within_each_part, neighbours_of_each_part, one_label]


@pytest.mark.parametrize("pieces", TABLES)
def test_tables_that_are_shuffled_before_an_epoch(pieces, tmp_path):
    torch.manual_seed(0)
    model, x, y = nn.Linear(8, 4), torch.randn(64, 8), torch.randint(4, (64,))
    optimizer = Adam(model.parameters(), 1e-3)
    with gradlab.watch(model, optimizer, folder=tmp_path, quiet=True) as w:
        for _ in range(2):
            for part, labels in zip(*pieces(x, y), strict=True):
                optimizer.zero_grad()
                F.cross_entropy(model(part), labels).backward()
                optimizer.step()
    assert not w.broken
    assert [f.name for f in w.faults] == ["unrelated-target"] * (pieces in TABLES[:WRONG])
    if pieces is left_in_order:
        assert w.faults[0].site[1] == marked(pieces)


@pytest.mark.parametrize("earlier", [True, False])
@pytest.mark.parametrize("made", [lambda order: order, torch.as_tensor], ids=["array", "tensor"])
def test_an_order_that_was_drawn_before_the_loop_may_have_been_used_for_the_target(earlier, made, tmp_path):
    torch.manual_seed(0)
    model, x, y = nn.Linear(8, 4), torch.randn(64, 8), torch.randint(4, (64,))
    order = np.random.default_rng(0).permutation(64)
    y = torch.from_numpy(y.numpy()[order])
    optimizer = Adam(model.parameters(), 1e-3)
    with gradlab.watch(model, optimizer, folder=tmp_path, quiet=True) as w:
        if not earlier:
            order = np.random.default_rng(1).permutation(64)
        for part, labels in zip(x[made(order)].split(16), y.split(16), strict=True):
            optimizer.zero_grad()
            F.cross_entropy(model(part), labels).backward()
            optimizer.step()
    assert not w.broken
    assert [f.name for f in w.faults] == ["unrelated-target"] * (not earlier)


def same_noise(m, x, y):
    noise = torch.randn_like(x)
    return F.mse_loss(m.same(noised(x, noise)), noise)


def mixed(m, x, y):
    rows, order = torch.randint(16, (16,)), torch.randperm(16)
    x, y = x[rows], y[rows]
    out = m.last(0.7 * x + 0.3 * x[order])
    return 0.7 * F.cross_entropy(out, y) + 0.3 * F.cross_entropy(out, y[order])


def of_the_next_row(m, x, y):
    rows = torch.randint(15, (8,))
    return F.mse_loss(m.same(x[rows]), x[rows + 1])


def of_a_near_row(m, x, y):
    rows = torch.randint(12, (8,))
    return F.mse_loss(m.same(x[rows]), x[rows + torch.randint(1, 4, (8,))])


def turned(m, x, y):
    """The turns are drawn, and are made one by one."""
    turns, x = torch.randint(4, (16,)), x[torch.randint(16, (16,))]
    turned = torch.stack([each.roll(int(turn)) for each, turn in zip(x, turns, strict=True)])
    return F.mse_loss(m.last(turned), torch.eye(4)[turns])


def restored(m, x, y):
    return F.mse_loss(m.same(noised(x)), x) + F.mse_loss(m.same(x + 0.1 * torch.randn_like(x)), torch.randn(16, 8) + x)


def all_with_all(m, x, y):
    """Two sets whose members do not belong together: an energy distance, or a kernel's mean discrepancy."""
    rows, others = torch.randint(16, (8,)), torch.randint(16, (8,))
    return (m.same(x[rows])[:, None] - x[others][None]).abs().mean()


def all_with_all_by_hand(m, x, y):
    one, two = m.same(x[torch.randint(16, (8,))]), x[torch.randint(16, (8,))]
    return (one[:, None].expand(8, 8, 8) - two[None].expand(8, 8, 8)).abs().mean()


def same_means(m, x, y):
    """Of as many numbers as samples."""
    one, two = m.same(x[torch.randint(16, (8,))]), x[torch.randint(16, (8,))]
    return F.mse_loss(one.mean(0), two.mean(0))


def same_order(m, x, y):
    """As of slices, in a Wasserstein distance."""
    one, two = m.same(x[torch.randint(16, (8,))])[:, 0], x[torch.randint(16, (8,))][:, 0]
    return F.mse_loss(one[one.argsort()], two[two.argsort()])


def action_of_a_policy(m, x, y):
    """Around a mean that noisy observations gave."""
    policy = torch.distributions.Normal(m.same(x + 0.1 * torch.randn_like(x)), 1.0)
    action = policy.sample()
    return -(policy.log_prob(action).sum(1) * (y - y.float().mean())).mean()


RIGHT = {
    "action_of_a_policy": action_of_a_policy,
    "by_hand": all_with_all_by_hand,
    "of_the_next_row": of_the_next_row,
    "of_a_near_row": of_a_near_row,
    "same_means": same_means,
    "same_order": same_order,
    "all_with_all": all_with_all,
    "same_noise": same_noise,
    "mixed": mixed,
    "turned": turned,
    "restored": restored,
    "same_rows": lambda m, x, y: F.cross_entropy(m.last(x[(r := torch.randint(16, (16,)))]), y[r]),
    "data_of_no_meaning": lambda m, x, y: F.mse_loss(m.same(torch.randn(16, 8)), torch.randn(16, 8)),
    "injected": lambda m, x, y: F.cross_entropy(m.last(m.same(x) - 0.1 * torch.randn(16, 8)), y),
}


@pytest.mark.parametrize("kind", RIGHT)
def test_what_is_drawn_once_or_on_purpose(kind, tmp_path):
    assert faults_of(RIGHT[kind], tmp_path) == []
