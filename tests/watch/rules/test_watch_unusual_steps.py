"""Unusual steps, clip calls and parameters are measured correctly."""

import contextlib

import pytest
import torch
from torch import nn
from torch.optim import SGD
from watched_loops import batches, lines, loss_of, net, pair, train, update

import gradlab
from gradlab.watch.graphs.loss_graph import graph_token, node_below_factors


class Raises(SGD):
    """Raises in its third step."""

    steps = 0

    def step(self, closure=None):
        self.steps += 1
        if self.steps == 3:
            raise ZeroDivisionError
        return super().step(closure)


def test_a_step_that_raises(tmp_path):
    """The next update is measured afresh."""
    model = net()
    optimizer, norms = Raises(model.parameters(), lr=0.1), []
    with gradlab.watch(model, optimizer, folder=tmp_path, every=1, step_every=1, quiet=True) as watch:
        for batch in batches(6):
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.1).item())
            try:
                optimizer.step()
            except ZeroDivisionError:
                norms.pop()
    assert not watch.broken
    assert watch.faults == []
    assert [line["grad/norm"] for line in lines(tmp_path)] == pytest.approx(norms, rel=1e-5)


class Twice(SGD):
    """Its step calls its base's, which runs the hooks too."""

    def step(self, closure=None):
        return super().step(closure)


@pytest.mark.parametrize("closure", [False, True])
def test_a_step_that_calls_another(closure, tmp_path):
    model, _ = pair()  # SGD itself has hooks from here on
    optimizer = Twice(model.parameters(), lr=0.1)
    with gradlab.watch(model, optimizer, folder=tmp_path, quiet=True) as watch:
        for i, batch in enumerate(batches(6)):

            def again(batch=batch, i=i):
                optimizer.zero_grad()
                loss = loss_of(model, batch)
                loss.backward()
                if closure and i == 2:
                    raise ZeroDivisionError
                return loss

            with contextlib.suppress(ZeroDivisionError):
                optimizer.step(again) if closure else again() and optimizer.step()
    assert watch.faults == []
    assert not watch.broken
    assert len(lines(tmp_path)) == (5 if closure else 6)
    assert all("train/loss" in line for line in lines(tmp_path))


def clip_iterator(model, norm):
    nn.utils.clip_grads_with_norm_((p for p in model.parameters()), 0.1, norm, foreach=True)


@pytest.mark.parametrize("clip", [clip_iterator, lambda model, norm: clip_iterator(model, norm / 2)])
def test_clipping_an_iterator_of_parameters(clip, tmp_path):
    model, optimizer = pair()
    norms = []
    with gradlab.watch(model, optimizer, folder=tmp_path, quiet=True) as watch:
        for batch in batches(6):
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            grads = [p.grad for p in model.parameters()]
            norm = nn.utils.get_total_norm(grads)
            clip(model, norm)
            norms.append((norm.item(), nn.utils.get_total_norm(grads).item()))
            optimizer.step()
    assert watch.faults == []
    for line, (before, after) in zip(lines(tmp_path), norms, strict=True):
        assert after < before
        if clip is clip_iterator:
            assert line["grad/norm"] == pytest.approx(before, rel=1e-5)
            assert line["clip/coefficient"] == pytest.approx(after / before, rel=1e-4)


def early_clip(model, optimizer):
    for batch in batches(3):
        optimizer.zero_grad()
        nn.utils.clip_grads_with_norm_(model.parameters(), 0.1, torch.tensor(1.0))
        loss_of(model, batch).backward()
        optimizer.step()


def test_clipping_an_iterator_before_backward(tmp_path):
    model, optimizer = pair()
    with gradlab.watch(model, optimizer, folder=tmp_path, quiet=True) as watch:
        early_clip(model, optimizer)
    assert [(fault.code, fault.site[1]) for fault in watch.faults] == [
        ("GL102", early_clip.__code__.co_firstlineno + 3),
    ]


def test_parameters_that_are_replaced(tmp_path):
    """A layer is replaced within the same group."""
    model, optimizer = pair()
    with gradlab.watch(model, optimizer, folder=tmp_path, quiet=True):
        train(model, optimizer, 6)
        model[2] = nn.Linear(16, 4)
        optimizer.param_groups[0]["params"][2:] = model[2].parameters()
        train(model, optimizer, 6)
        optimizer.zero_grad()
        loss_of(model, next(batches(1))).backward()
        norm = nn.utils.get_total_norm([p.grad for p in model.parameters()]).item()
        optimizer.step()
    assert lines(tmp_path)[-1]["grad/norm"] == pytest.approx(norm, rel=1e-5)


def test_all_parameters_are_frozen_at_first(tmp_path):
    model, optimizer = pair()
    model.requires_grad_(False)
    with gradlab.watch(model, optimizer, folder=tmp_path, quiet=True) as watch:
        model.requires_grad_(True)
        train(model, optimizer, 12)
    assert watch.faults == []
    assert len(lines(tmp_path)) == 12
    assert all(line["grad/norm"] > 0 for line in lines(tmp_path))


def test_steps_inside_the_backward_pass(tmp_path):
    """A hook on each parameter steps: the loss is that of the running pass."""
    model = net()
    optimizers = {p: SGD([p], lr=0.1) for p in model.parameters()}

    def hook(p):
        optimizers[p].step()
        optimizers[p].zero_grad()

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(hook)
    losses = []
    with gradlab.watch(model, list(optimizers.values()), folder=tmp_path, quiet=True) as watch:
        for batch in batches(6):
            loss = loss_of(model, batch)
            loss.backward()
            losses.append(loss.item())
    assert watch.faults == []
    for folder in (tmp_path, *(tmp_path / f"optimizer{i}" for i in (1, 2, 3))):
        assert [line["train/loss"] for line in lines(folder)] == pytest.approx(losses, rel=1e-6)


def test_losses_that_are_never_finite(tmp_path):
    model, optimizer = pair()
    with gradlab.watch(model, optimizer, folder=tmp_path, quiet=True) as watch:
        for x, y in batches(60):
            update(model, optimizer, (x * torch.nan, y))
    assert "the last losses are not finite, since update 1" in watch.report()
    assert "not moved" not in watch.report()  # a loss that is not finite has no level
    assert "never acted" not in watch.report()


def test_a_kept_loss_is_distinguished_from_nodes_that_live_anyway():
    """A parameter's node lives as long as the parameter; a part of the graph that is used again is no kept loss."""
    weight = nn.Parameter(torch.ones(()))
    other = (weight * 2).exp()  # keeps the parameter's node alive
    mark = graph_token(node_below_factors((weight / 2).grad_fn))
    assert mark is not None and mark() is None
    shared = other.square()
    first, loss = graph_token(node_below_factors((shared / 2).grad_fn)), shared / 3
    second = graph_token(node_below_factors((loss).grad_fn))
    assert first() is None and second() is not None
    kept, loss = shared, None
    assert second() is not None and kept is not None
