"""Averages of networks with batch normalisation: their running statistics must follow too."""

import copy
from functools import partial

import pytest
import torch
from torch import nn
from torch.optim import SGD
from torch.optim.swa_utils import AveragedModel, update_bn
from watched_loops import batches, loss_of, marked

import gradlab


def normalised():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))


def follow(average, model, buffers):
    with torch.no_grad():
        for p, q in zip(average.parameters(), model.parameters(), strict=True):
            p.lerp_(q, 0.1)  # here
        for p, q in zip(average.buffers(), model.buffers(), strict=True):
            if buffers:
                p.copy_(q)


def evaluated(average):
    with torch.no_grad():
        loss_of(average.eval(), next(batches(1)))


def run(folder, update, evaluate=evaluated, average_of=copy.deepcopy, model_of=normalised, at_end=False):
    model = model_of()
    average = average_of(model)
    optimizer = SGD(model.parameters(), 0.1)
    with gradlab.watch(model, optimizer, folder=folder, quiet=True) as watch:
        for epoch in range(8):
            for batch in batches(8, epoch):
                optimizer.zero_grad()
                loss_of(model, batch).backward()
                optimizer.step()
                update(average, model)
            if not at_end or epoch == 7:
                evaluate(average)
    assert not watch.broken and not watch.loop.seen.switched_off
    return [(f.name, f.site[1]) for f in watch.faults]


def test_an_average_without_the_buffers(tmp_path):
    found = [("statistics-left-behind", marked(follow))]
    assert run(tmp_path, lambda average, model: follow(average, model, False)) == found


@pytest.mark.parametrize("buffers", [True, False])
def test_an_average_that_is_evaluated_once(buffers, tmp_path):
    found = run(tmp_path, partial(follow, buffers=buffers), at_end=True)
    assert found == [("statistics-left-behind", marked(follow))] * (not buffers)


def recomputed(average):
    update_bn((batch[0] for batch in batches(4)), average)
    evaluated(average)


def of_the_test_set(average):
    """Its statistics are taken anew for each evaluation, and forgotten after it."""
    recomputed(average)
    for part in average.modules():
        if isinstance(part, nn.BatchNorm1d):
            part.reset_running_stats()


def with_an_affine_layer():
    """Batch normalisation that is never in training mode: its statistics stay what they are, as is meant."""
    model = normalised()
    model.insert(2, nn.BatchNorm1d(16).eval())
    return model


def test_a_layer_that_is_used_without_statistics(tmp_path):
    def update(average, model):
        follow(average, model, True)

    assert run(tmp_path, update, model_of=with_an_affine_layer) == []


def fixed(average, model):
    """A network that nothing moves, as of random features."""


@pytest.mark.parametrize(
    ("update", "evaluate", "average_of"),
    [
        (lambda average, model: follow(average, model, True), evaluated, copy.deepcopy),
        (lambda average, model: follow(average, model, False), lambda average: None, copy.deepcopy),
        (lambda average, model: average.update_parameters(model), recomputed, AveragedModel),
        (
            lambda average, model: follow(average, model, False),
            lambda average: loss_of(average.train(), next(batches(1))),
            copy.deepcopy,
        ),
        (fixed, evaluated, copy.deepcopy),
        (lambda average, model: follow(average, model, False), of_the_test_set, copy.deepcopy),
    ],
    ids=["copied", "never evaluated", "recomputed", "of each batch", "fixed", "of the test set"],
)
def test_averages_of_which_nothing_is_said(update, evaluate, average_of, tmp_path):
    assert run(tmp_path, update, evaluate, average_of) == []
