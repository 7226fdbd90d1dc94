"""What a step is made of: passes at other weights, gradients that were used, and those that a closure leaves."""

import copy

import pytest
import torch
from torch.optim import LBFGS, SGD
from watched_loops import batches, loss_of, marked, net

import gradlab

N = 8


def move(model, size, noise=False, data=False):
    """Along the gradient, or by noise."""
    moves = [size * (torch.randn_like(p) if noise else p.grad / p.grad.norm()) for p in model.parameters()]
    with torch.no_grad():
        for p, each in zip(model.parameters(), moves, strict=True):
            (p.data if data else p).add_(each)
    return moves


def back(model, moves, data=False):
    with torch.no_grad():
        for p, each in zip(model.parameters(), moves, strict=True):
            (p.data if data else p).sub_(each)


def looks_ahead(model, data=False, part=None, noise=False, weight=1, zero=False):
    optimizer = SGD(model.parameters(), 0.1)
    for batch in batches(N):
        optimizer.zero_grad()
        (weight * loss_of(model, batch)).backward()
        moves = move(part or model, 0.05, noise, data)
        if zero:
            optimizer.zero_grad()
        (weight * loss_of(model, batch)).backward()  # here
        back(part or model, moves, data)
        optimizer.step()


def looks_ahead_over_micro_batches(model):
    optimizer = SGD(model.parameters(), 0.1)
    for batch in batches(N):
        for i in range(2):
            for part in zip(*(each.chunk(2) for each in batch), strict=True):
                (loss_of(model, part) / 2).backward()
            if not i:
                moves = move(model, 0.05, data=True)
                optimizer.zero_grad()
        back(model, moves, data=True)
        optimizer.step()
        optimizer.zero_grad()


def closure_that_zeroes(model, when):
    optimizer = LBFGS(model.parameters(), 0.3, max_iter=4)
    batch = next(batches(1))

    def closure():
        if when == "before":
            optimizer.zero_grad()
        halves = [loss_of(model, half) / 2 for half in zip(*(each.chunk(2) for each in batch), strict=True)]
        for loss in halves:
            loss.backward()
        if when == "after":
            optimizer.zero_grad()  # here
        return sum(halves)

    for _ in range(N):
        optimizer.zero_grad()
        optimizer.step(closure)


def closure_that_zeroes_nothing(model):
    optimizer = LBFGS(model.parameters(), 0.3, max_iter=4)
    batch = next(batches(1))

    def closure():
        loss = loss_of(model, batch)
        loss.backward()  # here
        return loss

    for _ in range(N):
        optimizer.zero_grad()
        optimizer.step(closure)


def steps_twice(model, restores=False):
    optimizer = SGD(model.parameters(), 0.1)
    for batch in batches(N):
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        before = copy.deepcopy(model.state_dict())
        optimizer.step()
        if restores:  # the first step was too long
            model.load_state_dict(before)
            optimizer.param_groups[0]["lr"] *= 0.9
        optimizer.step()  # here


LOOPS = {
    "no zero_grad between two passes": (looks_ahead, {}, "passes-at-moved-weights"),
    "the same by .data": (looks_ahead, {"data": True}, "passes-at-moved-weights"),
    "zeroed": (looks_ahead, {"zero": True}, None),
    "the mean of both": (looks_ahead, {"weight": 0.5}, None),
    "weights with noise": (looks_ahead, {"noise": True}, None),
    "one layer, as adversarial embeddings": (looks_ahead, {"part": 0}, None),
    "micro-batches": (looks_ahead_over_micro_batches, {}, None),
    "zero after backward": (closure_that_zeroes, {"when": "after"}, "zero-before-step"),
    "zero before it": (closure_that_zeroes, {"when": "before"}, None),
    "no zero in a closure": (closure_that_zeroes_nothing, {}, "passes-at-moved-weights"),
    "two steps": (steps_twice, {}, "step-twice"),
    "a step again from the same weights": (steps_twice, {"restores": True}, None),
}


@pytest.mark.parametrize("name", LOOPS)
def test_what_steps_are_made_of(name, tmp_path):
    loop, given, expected = LOOPS[name]
    model = net()
    if "part" in given:
        given = {"part": model[0]}
    with gradlab.watch(model, folder=tmp_path, quiet=True) as watch:
        loop(model, **given)
    assert not watch.broken
    found = [(f.name, f.site[1]) for f in watch.faults]
    assert found == ([(expected, marked(loop))] if expected else [])
