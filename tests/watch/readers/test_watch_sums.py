"""Sums of losses: terms that earlier updates have stepped on, however they are added up, and those that are new."""

import pytest
import torch
from torch import nn
from torch.optim import SGD
from watched_loops import batches, loss_of, marked

import gradlab

SUMS = {
    "stack": lambda losses: torch.stack(losses).mean(),
    "cat": lambda losses: torch.cat([loss[None] for loss in losses]).sum() / 4,
    "sum": sum,
    "terms": lambda losses: 0.5 * losses[0] + (0.1 * sum(losses[1:]) if len(losses) > 1 else 0),
}


def summed(model, optimizer, add, keep):
    losses = []
    for i, batch in enumerate(batches(12)):
        losses = losses if i % keep else []
        optimizer.zero_grad()
        for part in zip(*(each.chunk(2) for each in batch), strict=True):
            losses.append(loss_of(model, part))
        add(losses).backward(retain_graph=True)  # here
        optimizer.step()


@pytest.mark.parametrize("keep", [1, 12])
@pytest.mark.parametrize("name", SUMS)
def test_losses_that_were_stepped_on_are_terms_again(name, keep, tmp_path):
    torch.manual_seed(0)
    model = nn.Linear(8, 4)
    optimizer = SGD(model.parameters(), 0.01)
    with gradlab.watch(model, optimizer, folder=tmp_path, quiet=True) as watch:
        summed(model, optimizer, SUMS[name], keep)
    assert not watch.broken
    found = [(f.name, f.site[1]) for f in watch.faults if f.name != "loss-kept-with-graph"]
    assert found == ([] if keep == 1 else [("backward-twice", marked(summed))])


def measured(model, optimizer, zeroed):
    """The gradient of one term is measured first, and is then there already when that of the sum is added."""
    for x, y in batches(12):
        optimizer.zero_grad()
        one, two = loss_of(model, (x, y)), 10 * model(x).square().mean()
        two.backward(retain_graph=True)
        model.weight.grad.norm()
        if zeroed:
            optimizer.zero_grad()
        (one + two).backward()  # here
        optimizer.step()


@pytest.mark.parametrize("zeroed", [False, True])
def test_a_term_that_was_passed_before_is_counted_twice(zeroed, tmp_path):
    model = nn.Linear(8, 4)
    optimizer = SGD(model.parameters(), 0.01)
    with gradlab.watch(model, optimizer, folder=tmp_path, quiet=True) as watch:
        measured(model, optimizer, zeroed)
    assert not watch.broken
    assert [(f.name, f.site[1]) for f in watch.faults] == ([] if zeroed else [("backward-twice", marked(measured))])
