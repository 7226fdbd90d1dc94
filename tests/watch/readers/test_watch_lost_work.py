"""Losses and weights that are computed and thrown away, and copies that are none; and loops that come near."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from watched_loops import batches, loss_of, marked, pair

import gradlab

N = 8


def backward_after_the_epoch(model, optimizer):
    for _ in range(N):
        for x, y in batches(3):
            loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()  # here
        optimizer.step()


def of_parts(model, x, y):
    for i in range(2):
        loss = F.cross_entropy(model(x[i::2]), y[i::2])  # here
    return loss


def overwritten_in_a_function(model, optimizer):
    for x, y in batches(N):
        optimizer.zero_grad()
        of_parts(model, x, y).backward()
        optimizer.step()


def the_smallest_of_several(model, optimizer):
    for i, batch in enumerate(batches(N)):
        losses = [loss_of(model, (batch[0] + k, batch[1])) for k in range(2)]
        optimizer.zero_grad()
        losses[i // 3 % 2].backward()
        optimizer.step()


def micro_batches_and_one_that_is_measured(model, optimizer):
    for _ in range(N):
        optimizer.zero_grad()
        for batch in batches(3):
            (loss_of(model, batch) / 3).backward()
        loss_of(model, batch).item()
        optimizer.step()


def penalties_of_gradients(model, optimizer):
    for x, _ in batches(N):
        x.requires_grad_(True)
        optimizer.zero_grad()
        loss = ((torch.autograd.grad(model(x).sum(), x, create_graph=True)[0].norm(2, 1) - 1) ** 2).mean()
        loss.backward()
        optimizer.step()


def parts_of_which_one_is_logged(model, optimizer):
    for x, y in batches(N):
        each = F.cross_entropy(model(x), y, reduction="none")
        logged, loss = each[y < 2].sum().item(), each[y > 1].sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return logged


def a_layer_for_each_pass(model, optimizer):
    for x, y in batches(N):
        optimizer.zero_grad()
        layer = nn.Linear(4, 4)
        out = layer(model(x))  # here
        F.cross_entropy(out, y).backward()
        optimizer.step()


def a_layer_that_stays(model, optimizer):
    layer = nn.Linear(4, 4).requires_grad_(True)
    optimizer.add_param_group({"params": layer.parameters()})
    for x, y in batches(N):
        optimizer.zero_grad()
        F.cross_entropy(layer(model(x)), y).backward()
        optimizer.step()


def learners_that_are_copies(model, optimizer):
    for x, y in batches(N):
        learner = copy.deepcopy(model)
        F.cross_entropy(learner(x), y).backward()
        optimizer.zero_grad()
        for p, q in zip(model.parameters(), learner.parameters(), strict=True):
            p.grad = q.grad.clone()
        optimizer.step()


def averages_in_place(model, optimizer, copied=False, in_two=False):
    average = {n: p.data.clone() if copied else p.data for n, p in model.named_parameters()}
    for batch in batches(N):
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()
        for n, p in model.named_parameters():
            if in_two:
                average[n].mul_(0.9).add_(p.data, alpha=0.1)
            else:
                average[n].lerp_(p.data, 0.1)  # here


def decayed_by_hand(model, optimizer):
    for batch in batches(N):
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()
        for p in model.parameters():
            p.data.add_(p.data, alpha=-0.01)


def divided_by_hand_too(model, optimizer, again=True):
    for _ in range(N):
        for batch in batches(3):
            loss = loss_of(model, batch) / 3
            loss.backward()
        for p in model.parameters() if again else ():
            p.grad /= 3  # here
        optimizer.step()
        optimizer.zero_grad()


def run(loop, tmp_path, **given):
    model, optimizer = pair()
    with gradlab.watch(model, optimizer, folder=tmp_path, quiet=True) as w:
        loop(model, optimizer, **given)
    assert not w.broken
    return [(f.name, f.site[1]) for f in w.faults]


WRONG = {
    "losses-thrown-away": backward_after_the_epoch,
    "weights-made-anew": a_layer_for_each_pass,
    "state-of-itself": averages_in_place,
    "loss-divided-twice": divided_by_hand_too,
}


@pytest.mark.parametrize("name", WRONG)
def test_work_that_is_lost(name, tmp_path):
    assert run(WRONG[name], tmp_path) == [(name, marked(WRONG[name]))]


def test_losses_that_a_function_overwrites(tmp_path):
    assert run(overwritten_in_a_function, tmp_path) == [("losses-thrown-away", marked(of_parts))]


def test_an_average_in_two_operations(tmp_path):
    assert [name for name, _ in run(averages_in_place, tmp_path, in_two=True)] == ["state-of-itself"]


RIGHT = [
    (the_smallest_of_several, {}),
    (micro_batches_and_one_that_is_measured, {}),
    (penalties_of_gradients, {}),
    (parts_of_which_one_is_logged, {}),
    (a_layer_that_stays, {}),
    (learners_that_are_copies, {}),
    (averages_in_place, {"copied": True}),
    (averages_in_place, {"copied": True, "in_two": True}),
    (decayed_by_hand, {}),
    (divided_by_hand_too, {"again": False}),
]


@pytest.mark.parametrize("loop, given", RIGHT)
def test_loops_that_come_near(loop, given, tmp_path):
    assert run(loop, tmp_path, **given) == []
