"""Hooks on weights and modules: the same one must not be registered again in every epoch."""

import pytest
import torch
from torch.optim import SGD
from watched_loops import batches, loss_of, marked, net

import gradlab


class Recorder:
    def __init__(self):
        self.seen = []

    def keep(self, module, given, out):
        self.seen.append(out.mean().item())


def halves(model, epoch, state):
    model[0].weight.register_hook(lambda g: 0.5 * g)  # here


def scales(model, epoch, state):
    for share in (0.9, 0.8):
        model[2].weight.register_hook(lambda g, share=share: share * g)  # here


def keeps(model, epoch, state):
    model[0].register_forward_hook(state.keep)  # here


def weakened(module, given, out):
    return (None if given[0] is None else 0.5 * given[0],)


def beside_others(model, epoch, state):
    model[2].register_full_backward_hook(weakened)  # here
    model[2].register_forward_hook(state.keep).remove()


def masks(model, epoch, state):
    mask = torch.rand(16, 8) > 0.1 * epoch
    model[0].weight.register_hook(lambda g: mask * g)


def is_removed(model, epoch, state):
    state.seen = [handle.remove() for handle in state.seen]
    state.seen = [model[0].weight.register_hook(lambda g: 0.5 * g)]


def all_are_removed_at_last(model, epoch, state):
    state.seen.append(model[0].weight.register_hook(lambda g: g))
    if epoch == 3:
        state.seen = [handle.remove() for handle in state.seen]


def different(model, epoch, state):
    model[0].weight.register_hook(lambda g: g / (1 + epoch))


class Row:
    def __init__(self, number):
        self.number = number

    def without(self, g):
        return g.index_fill(0, torch.tensor([self.number]), 0)


def of_other_objects(model, epoch, state):
    model[0].weight.register_hook(Row(epoch).without)


def of_other_keywords(model, epoch, state):
    model[0].weight.register_hook(lambda g, *, row=epoch: Row(row).without(g))


def by_names(model, epoch, state):
    torch.Tensor.register_hook(self=model[0].weight, hook=lambda g: 0.5 * g)  # here
    torch.nn.Module.register_forward_hook(self=model, hook=Recorder().keep)


def once(model, epoch, state):
    if not epoch:
        for _ in range(4):
            halves(model, epoch, state)


def of_activations(model, epoch, state):
    x, _ = next(batches(1))
    for layer in model:
        x = layer(x)
        x.register_hook(lambda g: 0.5 * g)
    x.sum().backward()


def run(folder, register):
    model, recorder = net(), Recorder()
    optimizer = SGD(model.parameters(), 0.1)
    with gradlab.watch(model, optimizer, folder=folder, quiet=True) as watch:
        for epoch in range(4):
            register(model, epoch, recorder)
            for batch in batches(3):
                optimizer.zero_grad()
                loss_of(model, batch).backward()
                optimizer.step()
    assert not watch.broken
    return [(f.name, f.site[1], f.update) for f in watch.faults]


@pytest.mark.parametrize("register", [halves, scales, keeps, by_names, beside_others])
def test_a_hook_that_is_registered_in_every_epoch(register, tmp_path):
    assert run(tmp_path, register) == [("hook-registered-again", marked(register), 7)]


@pytest.mark.parametrize(
    "register",
    [masks, is_removed, all_are_removed_at_last, different, of_other_objects, of_other_keywords, once, of_activations],
)
def test_hooks_of_which_nothing_is_said(register, tmp_path):
    assert run(tmp_path, register) == []
