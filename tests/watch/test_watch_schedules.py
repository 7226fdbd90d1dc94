"""A schedule that ends long before the training, or is never stepped, and those of which nothing is said."""

import inspect

import pytest
from torch.optim import SGD
from torch.optim import lr_scheduler as schedules
from watched_loops import batches, loss_of, net

import gradlab

MADE = {
    "exponential": lambda optimizer: schedules.ExponentialLR(optimizer, 0.8),
    "steps": lambda optimizer: schedules.StepLR(optimizer, 5, 0.1),
    "linear": lambda optimizer: schedules.PolynomialLR(optimizer, total_iters=8),
    "lambda": lambda optimizer: schedules.LambdaLR(optimizer, lambda epoch: 0.8**epoch),
}
USUAL = {
    "cosine": lambda optimizer: schedules.CosineAnnealingLR(optimizer, 80),
    "restarts": lambda optimizer: schedules.CosineAnnealingWarmRestarts(optimizer, 20),
    "one_cycle": lambda optimizer: schedules.OneCycleLR(optimizer, 0.1, total_steps=81),
    "slow": lambda optimizer: schedules.ExponentialLR(optimizer, 0.97),
}


def trained(folder, make, step_at):
    """Ten epochs of eight updates. step_at: whether the schedule steps at an update of an epoch."""
    model = net()
    optimizer = SGD(model.parameters(), 0.1)
    schedule = make(optimizer)
    with gradlab.watch(model, optimizer, schedule=schedule, folder=folder, quiet=True) as watch:
        for _ in range(10):
            for i, batch in enumerate(batches(8)):
                optimizer.zero_grad()
                loss_of(model, batch).backward()
                optimizer.step()
                if step_at(i):
                    schedule.step()
                line = inspect.currentframe().f_lineno - 1
    assert not watch.broken
    return [(f.name, f.site[1]) for f in watch.faults], line


@pytest.mark.parametrize("name", MADE)
def test_a_schedule_of_epochs_that_is_stepped_for_each_batch(name, tmp_path):
    faults, line = trained(tmp_path, MADE[name], lambda i: True)
    assert faults == [("schedule-too-short", line)]
    assert trained(tmp_path, MADE[name], lambda i: i == 7)[0] == []


@pytest.mark.parametrize("name", USUAL)
def test_a_schedule_that_is_as_long_as_the_training(name, tmp_path):
    assert trained(tmp_path, USUAL[name], lambda i: True)[0] == []


def test_a_schedule_that_is_never_stepped(tmp_path):
    faults, line = trained(tmp_path, USUAL["cosine"], lambda i: False)
    assert faults == [("schedule-never-stepped", line - 2)]
