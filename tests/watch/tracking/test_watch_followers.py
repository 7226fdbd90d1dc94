"""Weights that follow others between two steps: averages, inverted ones, and those that the optimizer moves too."""

import copy
import math
from functools import partial

import pytest
import torch
from torch.nn import functional as F
from torch.optim import SGD
from watched_loops import batches, loss_of, marked, net

import gradlab


def averaged(student, teacher, optimizer, share, taught):
    for i, batch in enumerate(batches(52)):
        optimizer.zero_grad()
        with torch.set_grad_enabled(taught):
            goal = teacher(batch[0]).softmax(1)
        (loss_of(student, batch) + F.mse_loss(student(batch[0]).softmax(1), goal)).backward()
        optimizer.step()
        for p, q in zip(student.parameters(), teacher.parameters(), strict=True):
            q.data.mul_(1 - share(i)).add_(p.data, alpha=share(i))  # here


def faults(folder, share, taught=False, held=False, watched=1):
    student = net()
    teacher = net(1)
    optimizer = SGD([*student.parameters(), *(teacher.parameters() if held else ())], 0.1)  # here
    with gradlab.watch([student, teacher][:watched], optimizer, folder=folder, quiet=True) as watch:
        averaged(student, teacher, optimizer, share, taught)
    assert not watch.broken
    return [(f.name, f.site[1]) for f in watch.faults]


@pytest.mark.parametrize("watched", [1, 2])
def test_an_average_that_takes_nearly_all_of_the_latest_weights(watched, tmp_path):
    assert faults(tmp_path, lambda i: 0.99, watched=watched) == [("average-inverted", marked(averaged))]


@pytest.mark.parametrize("taught", [True, False])
def test_an_average_that_the_optimizer_moves_too(taught, tmp_path):
    """Without gradients it moves nothing, though it holds them."""
    found = [("average-in-optimizer", marked(faults))] if taught else []
    assert faults(tmp_path, lambda i: 0.02, taught, held=True) == found


@pytest.mark.parametrize("frozen", [True, False])
def test_an_average_whose_sides_are_exchanged(frozen, tmp_path):
    """What is trained follows what nothing moves."""
    student, teacher = net(), net(1).requires_grad_(not frozen)
    optimizer = SGD(student.parameters(), 0.1)
    with gradlab.watch(student, optimizer, folder=tmp_path, quiet=True) as watch:
        exchanged(student, teacher, optimizer)
    assert not watch.broken
    assert [(f.name, f.site[1]) for f in watch.faults] == [("average-in-optimizer", marked(exchanged))]


def exchanged(student, teacher, optimizer):
    for batch in batches(52):
        optimizer.zero_grad()
        with torch.no_grad():
            goal = teacher(batch[0]).softmax(1)
        (loss_of(student, batch) + F.mse_loss(student(batch[0]).softmax(1), goal)).backward()
        optimizer.step()
        with torch.no_grad():
            for p, q in zip(student.parameters(), teacher.parameters(), strict=True):
                p.mul_(0.98).add_(q, alpha=0.02)  # here


def written(kept, model, share):
    for name, p in model.named_parameters():
        kept[name].mul_(1 - share).add_(p.detach(), alpha=share)  # here


def replaced(kept, model, share):
    for name, p in model.named_parameters():
        kept[name] = share * p.detach() + (1 - share) * kept[name]  # here


def interpolated(kept, model, share):
    kept["list"][:] = [old.lerp(p.detach(), share) for old, p in zip(kept["list"], model.parameters())]  # here


@pytest.mark.parametrize("share", [0.99, 0.01, 1.0])
@pytest.mark.parametrize("follow", [written, replaced, interpolated])
def test_an_average_that_is_no_network(follow, share, tmp_path):
    model = net()
    kept = {name: p.detach().clone() for name, p in model.named_parameters()}
    if follow is interpolated:
        kept = {"list": list(kept.values())}
    optimizer = SGD(model.parameters(), 0.1, momentum=0.9)
    with gradlab.watch(model, optimizer, folder=tmp_path, quiet=True) as watch:
        for i, batch in enumerate(batches(52)):
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            optimizer.step()
            follow(kept, model, share)
            if i == 30:
                holders = [place.args[0] for place in watch.loop.followers.places if isinstance(place, partial)]
    states = list(optimizer.state.values())
    assert holders and not any(each is state for each in holders for state in states)
    assert not watch.broken and not watch.loop.followers.places
    assert [(f.name, f.site[1]) for f in watch.faults] == [("average-inverted", marked(follow))] * (share == 0.99)


SHARES = {
    "usual": lambda i: 0.01,
    "short": lambda i: 0.6,
    "every update a copy": lambda i: 1.0,
    "running mean": lambda i: 1 / (i + 1),
    "warm-up of the decay": lambda i: 1 - 0.9999 * (1 - math.exp(-(i + 1) / 2000)),
    "now and then a copy": lambda i: float(i % 12 == 0),
}


@pytest.mark.parametrize("name", SHARES)
def test_averages_of_which_nothing_is_said(name, tmp_path):
    assert faults(tmp_path, SHARES[name]) == []


@pytest.mark.parametrize("how", ["elastic", "anchored", "look ahead"])
def test_weights_of_an_optimizer_that_something_else_moves(how, tmp_path):
    model = net()
    other = copy.deepcopy(model) if how != "elastic" else net(1)
    held = [*model.parameters(), *(other.parameters() if how == "elastic" else ())]
    optimizer = SGD(held, 0.1)
    with gradlab.watch([model, other], optimizer, folder=tmp_path, quiet=True) as watch:
        for batch in batches(52):
            optimizer.zero_grad()
            (loss_of(model, batch) + (loss_of(other, batch) if how == "elastic" else 0)).backward()
            optimizer.step()
            with torch.no_grad():
                for p, q in zip(model.parameters(), other.parameters(), strict=True):
                    way = q - p
                    p.add_(way, alpha=0.2 if how != "look ahead" else 0.5)
                    if how != "anchored":
                        q.sub_(way, alpha=0.2 if how != "look ahead" else 0.5)
    assert not watch.broken
    assert watch.faults == []


def test_weights_that_are_emptied_between_two_steps_are_not_compared(tmp_path):
    """As those that are offloaded."""
    model, other = net(), net(1)
    optimizer, kept = SGD(model.parameters(), 0.1), [p.data for p in other.parameters()]
    with gradlab.watch(model, optimizer, folder=tmp_path, quiet=True) as watch:
        for batch in batches(52):
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            for p, data in zip(other.parameters(), kept, strict=True):
                p.data = torch.empty(0) if p.numel() else data
            optimizer.step()
    assert not watch.broken
