"""Learning rates that the loop sets itself: too low too soon."""

import math

import pytest
from torch.optim import SGD
from torch.optim.lr_scheduler import CosineAnnealingLR
from watched_loops import batches, loss_of, net

import gradlab


def of_all(model):
    return SGD(model.parameters(), 0.1)


def of_two_groups(model):
    return SGD([{"params": model[0].parameters(), "lr": 0.05}, {"params": model[2].parameters()}], 0.1)


def run(
    folder,
    after_update=lambda optimizer, i: None,
    schedule=None,
    after_epoch=lambda optimizer, i: None,
    optimizer_of=of_all,
):
    """Ten epochs of eight updates; the faults, and whose line it is."""
    model = net()
    optimizer = optimizer_of(model)
    stepped = schedule and schedule(optimizer)
    with gradlab.watch(model, optimizer, folder=folder, quiet=True) as watch:
        for epoch in range(10):
            for i, batch in enumerate(batches(8)):
                optimizer.zero_grad()
                loss_of(model, batch).backward()
                optimizer.step()
                after_update(optimizer, epoch * 8 + i)
                if stepped:
                    stepped.step()  # here
            after_epoch(optimizer, epoch)
    assert not watch.broken
    return [(f.name, f.site[1], f.update) for f in watch.faults]


def lowered(share):
    def lower(optimizer, i):
        for group in optimizer.param_groups:
            group["lr"] *= share

    return lower


def set_to(rate):
    def put(optimizer, i):
        optimizer.param_groups[0]["lr"] = rate(i)

    return put


def test_a_rate_that_is_lowered_after_each_update_and_not_each_epoch(tmp_path):
    ((name, _, update),) = run(tmp_path, lowered(0.7))
    assert (name, update) == ("schedule-too-short", 21)  # 0.7**20 is below a thousandth
    assert run(tmp_path, after_epoch=lowered(0.7)) == []


@pytest.mark.parametrize(
    "rate",
    [
        lambda i: 0.1 * math.cos(i / 80 * math.pi / 2),
        lambda i: 0.1 * min(1, i / 10) * (1 - i / 80),
        lambda i: 1e-3 * 1.08**i,  # a search
        lambda i: 0.1 if i < 20 else 0.0,  # a part of the training
        lambda i: 0.5 * 0.1 ** min(i // 8, 4),  # few steps, of which the last is long
        lambda i: 1e-5 * 1.5**i if i < 30 else 1e-3,  # a search, and then the training
        lambda i: 0.1 * 0.8**i,  # steps that shrink
        lambda i: max(1e-5, 0.05 * (1 + math.cos(i / 36 * math.pi)) if i < 36 else 0),  # a floor
    ],
)
def test_rates_that_are_set_after_each_update_as_is_usual(rate, tmp_path):
    assert run(tmp_path, set_to(rate)) == []


def test_a_body_that_is_frozen_by_its_rate_while_the_head_is_trained(tmp_path):
    cooled = set_to(lambda i: 0.05 * max(0, 1 - i // 4 / 4))
    assert run(tmp_path, cooled, optimizer_of=of_two_groups) == []


@pytest.mark.parametrize("length", [4, 20, 80])
def test_a_cosine_that_rises_again_may_be_meant(length, tmp_path):
    assert run(tmp_path, schedule=lambda optimizer: CosineAnnealingLR(optimizer, length, eta_min=0.02)) == []
