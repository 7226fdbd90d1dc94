"""Optimizers that were not passed to the watch: discovered, noted, or inside other optimizers."""

import copy
import math

import pytest
import torch
from torch.optim import SGD, Adagrad, Adam
from torch.optim.lr_scheduler import LambdaLR
from watched_loops import batches, codes, lines, loss_of, marked, net, train, update

import gradlab
from gradlab.watch.call_site import format_site


def test_an_optimizer_that_is_created_later(tmp_path):
    model = net()
    with gradlab.watch(model, folder=tmp_path, quiet=True) as watch:
        optimizer = SGD(model.parameters(), lr=0.1)
        for batch in batches(4):
            loss_of(model, batch).backward()
            optimizer.step()
    assert [(fault.code, fault.update) for fault in watch.faults] == [("GL305", 2)]
    assert len(lines(tmp_path)) == 4


def test_of_many_that_replace_each_other_the_last_is_followed(tmp_path):
    model = net()
    with gradlab.watch(model, folder=tmp_path, quiet=True) as watch:
        for batch in batches(30):
            optimizer = Adam(model.parameters(), lr=0.1)
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            optimizer.step()
    trackers = watch.loop.trackers
    assert [f.name for f in watch.faults] == ["optimizer-made-anew"]
    assert [t.others.replaced for t in trackers] == [True] * 29 + [False]
    assert max(t.num_backwards for t in trackers[:10]) > trackers[25].num_backwards == trackers[-1].num_backwards == 1


def test_optimizers_that_exist_already(tmp_path):
    model, other = net(), net()
    optimizer, foreign = SGD(model.parameters(), lr=0.1), SGD(other.parameters(), lr=0.1)
    with gradlab.watch(model, folder=tmp_path, quiet=True) as watch:
        train(model, optimizer)
        train(other, foreign)
    assert [f.optimizer for f in watch.loop.trackers] == [optimizer]
    assert watch.loop.outputs[0].num_updates == 6


def test_no_optimizer_is_found(tmp_path):
    with gradlab.watch(net(), folder=tmp_path, quiet=True) as watch:
        pass
    assert "no optimizer" in watch.report()


class Another(SGD):
    """An optimizer of the same parameters."""


def two_optimizers(model, optimizer):
    """The one that was passed to the watch is replaced."""
    train(model, optimizer, 3)
    train(model, Another(model.parameters(), lr=0.1), 3)


def test_another_optimizer_of_the_same_parameters_is_reported(tmp_path):
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    with gradlab.watch(model, optimizer, folder=tmp_path, quiet=True) as watch:
        two_optimizers(model, optimizer)
    line = update.__code__.co_firstlineno + 5
    assert f"its parameters were also moved by Another at {format_site((update.__code__, line))}" in watch.report()
    assert watch.report().count("Another") == 1


class Sharpness(torch.optim.Optimizer):
    """Moves the weights uphill itself, and calls the step of another optimizer there."""

    def __init__(self, params):
        super().__init__(params, {})
        self.base = torch.optim.Adam(self.param_groups, lr=0.01)
        self.param_groups = self.base.param_groups

    @torch.no_grad()
    def climb(self):
        for p in (p for group in self.param_groups for p in group["params"]):
            self.state[p]["was"] = p.clone()
            p.add_(p.grad, alpha=0.05)

    @torch.no_grad()
    def step(self):
        for p in (p for group in self.param_groups for p in group["params"]):
            p.copy_(self.state[p]["was"])
        self.base.step()


@pytest.mark.parametrize("passed", ["outer", "inner", "none"])
def test_an_optimizer_of_optimizers(passed, tmp_path):
    model = net()
    outer = Sharpness(model.parameters())
    given = {"outer": [outer], "inner": [outer.base], "none": []}[passed]
    with gradlab.watch(model, *given, folder=tmp_path, quiet=True) as watch:
        for batch in batches(6):
            loss_of(model, batch).backward()
            outer.climb()
            outer.zero_grad()
            loss_of(model, batch).backward()
            outer.step()
            outer.zero_grad()
    assert codes(watch) == []
    assert [o.num_updates for o in watch.loop.outputs] == [6]
    assert "also moved" not in watch.report()


def made_for_each_epoch(model, then):
    for epoch in range(24):
        optimizer = SGD(model.parameters(), 0.1, momentum=0.0 if then == "averages nothing" else 0.98)  # here
        start = [p.detach().clone() for p in model.parameters()]
        train(model, optimizer, 3, seed=epoch)
        if then == "load":
            model.load_state_dict(dict(zip(model.state_dict(), start, strict=True)))
        for p, old in zip(model.parameters(), start, strict=True):
            if then == "data":  # as Reptile does
                p.data.lerp_(old, 0.5)
        if then == "stages" and epoch == 5:
            break


@pytest.mark.parametrize("then", ["go on", "load", "data", "stages", "averages nothing"])
def test_an_optimizer_that_is_made_anew(then, tmp_path):
    model = net()
    with gradlab.watch(model, folder=tmp_path, quiet=True) as watch:
        made_for_each_epoch(model, then)
    found = [(f.name, f.site[1]) for f in watch.faults]
    assert not watch.broken
    assert found == ([("optimizer-made-anew", marked(made_for_each_epoch))] if then == "go on" else [])


@pytest.mark.parametrize(("updates", "wrong"), [(4, True), (30, False)])
def test_an_optimizer_that_is_made_anew_a_few_times(updates, wrong, tmp_path):
    """In stages of next to no updates of those that it averages over; others may be those of a training."""
    model = net()
    with gradlab.watch(model, folder=tmp_path, quiet=True) as watch:
        for stage in range(6):
            train(model, torch.optim.Adam(model.parameters(), 0.001), updates, seed=stage)
    assert codes(watch) == ["GL903"] * wrong


def resumed(model, made_again):
    """Jobs of a queue, each of which goes on from what the one before has saved."""
    saved = None

    def made():
        return Adagrad(model.parameters(), 0.1)  # here

    for job in range(13):
        optimizer = made()
        if saved:
            model.load_state_dict(saved[0])
            optimizer.load_state_dict(saved[1])
            optimizer = made() if made_again else optimizer
        train(model, optimizer, 3, seed=job)
        saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))


@pytest.mark.parametrize("made_again", [True, False])
def test_an_optimizer_in_the_place_of_one_that_was_loaded(made_again, tmp_path):
    model = net()
    with gradlab.watch(model, folder=tmp_path, quiet=True) as watch:
        resumed(model, made_again)
    assert not watch.broken
    assert [f.name for f in watch.faults] == ["optimizer-made-anew"] * made_again


def test_a_training_that_is_cut_in_two(tmp_path):
    """The schedule of the first half is as long as both, and the second begins with what is learnt."""
    model, saved, total = net(), None, 120
    x, _ = next(batches(1))
    with gradlab.watch(model, folder=tmp_path, quiet=True) as watch:
        for _ in range(2):
            optimizer = SGD(model.parameters(), 0.1)
            schedule = LambdaLR(optimizer, lambda i: 0.5 * (1 + math.cos(math.pi * min(i, total) / total)))
            for thing, state in zip((model, optimizer, schedule), saved or (), strict=False):
                thing.load_state_dict(state)
            for _ in range(60):
                optimizer.zero_grad()
                (model(x) - 3 - torch.randn(16, 4)).square().mean().backward()
                optimizer.step()
                schedule.step()
            saved = copy.deepcopy((model.state_dict(), optimizer.state_dict(), schedule.state_dict()))
    assert codes(watch) == []
    assert "not_learning" not in watch.report()
