"""What is claimed of all updates rests on all of them, and gradients that the loop makes itself are measured."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from watched_loops import batches, lines, loss_of, net

import gradlab

LOOPS = {}


def loop(function):
    LOOPS[function.__name__] = function
    return function


def written(model, gradients):
    for p, grad in zip(model.parameters(), gradients, strict=True):
        p.grad = grad


@loop
def projected_gradients(model, optimizer):
    """Of two tasks (PCGrad): each task's gradient is copied and zeroed."""
    for pair in zip(batches(6), batches(6, 2), strict=True):
        kept = []
        for batch in pair:
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            kept.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
        one, two = kept
        one = one - (one @ two).clamp(max=0) / two.square().sum() * two
        parts = (one + two).split([p.numel() for p in model.parameters()])
        written(model, [part.view_as(p) for part, p in zip(parts, model.parameters(), strict=True)])
        optimizer.step()
        yield sum(loss_of(model, batch).item() for batch in pair)


@loop
def gradients_that_are_returned(model, optimizer):
    for batch in batches(6):
        written(model, torch.autograd.grad(loss_of(model, batch), model.parameters()))
        optimizer.step()
        yield loss_of(model, batch).item()


@loop
def gradients_of_gradients(model, optimizer):
    """What is differentiated second is made of gradients, and no loss."""
    params = list(model.parameters())
    for batch in batches(6):
        slopes = torch.autograd.grad(loss_of(model, batch), params, create_graph=True)
        written(model, torch.autograd.grad(sum(g.square().sum() for g in slopes), params))
        optimizer.step()
        yield loss_of(model, batch).item()


@loop
def gradients_cached_over_a_window(model, optimizer):
    cache = [torch.zeros_like(p) for p in model.parameters()]
    for i, batch in enumerate(batches(12)):
        (loss_of(model, batch) / 2).backward()
        cache = [kept + p.grad for kept, p in zip(cache, model.parameters(), strict=True)]
        model.zero_grad()
        if i % 2:
            written(model, cache)
            optimizer.step()
            optimizer.zero_grad()
            cache = [torch.zeros_like(p) for p in model.parameters()]
            yield None


@loop
def two_roots(model, optimizer):
    for batch in batches(6):
        optimizer.zero_grad()
        torch.autograd.backward([loss_of(model, batch), loss_of(model, batch)])
        optimizer.step()
        yield 2 * loss_of(model, batch).item()


@loop
def clipped_by_sample(model, optimizer):
    """No call shows the losses."""
    names = [name for name, _ in model.named_parameters()]

    def of_sample(params, x, y):
        return F.cross_entropy(torch.func.functional_call(model, params, (x[None],)), y[None])

    by_sample = torch.func.vmap(torch.func.grad(of_sample), in_dims=(None, 0, 0))
    for x, y in batches(6):
        found = by_sample({name: p.detach() for name, p in model.named_parameters()}, x, y)
        norms = torch.stack([found[name].flatten(1).norm(dim=1) for name in names]).norm(dim=0)
        shares = (1 / norms).clamp(max=1) / len(y)
        written(model, [torch.einsum("b,b...->...", shares, found[name]) for name in names])
        optimizer.step()
        yield None


@pytest.mark.parametrize("name", LOOPS)
def test_gradients_that_the_loop_makes_itself_are_measured(name, tmp_path):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)  # losses stay what they are
    with gradlab.watch(model, optimizer, folder=tmp_path, quiet=True) as watch:
        losses = list(LOOPS[name](model, optimizer))
    assert not watch.broken
    assert watch.faults == []
    written = lines(tmp_path)
    assert len(written) == len(losses) == 6
    assert all(line["grad/norm"] > 0 for line in written)
    for line, loss in zip(written, losses, strict=True):
        assert loss is None or line["train/loss"] == pytest.approx(loss, rel=1e-4)
    assert "verdict: too_short" in watch.report()
    assert ("its losses are not known" in watch.report()) is (name == "clipped_by_sample")


class Parts(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = net(), net(1)


@pytest.mark.parametrize("turns", [(1, 4), (5, 5), (4, 1), (6, 0)])
def test_never_rests_on_every_update(turns, tmp_path):
    """Layers are recorded at updates 1, 6, 11: parts that are trained in between are trained."""
    model = Parts()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gradlab.watch(model, optimizer, folder=tmp_path, quiet=True) as watch:
        for i, batch in enumerate(batches(12)):
            optimizer.zero_grad()
            loss_of(model.one if i % sum(turns) < turns[0] else model.two, batch).backward()
            optimizer.step()
    never = "no gradient ever reaches two.0.weight, two.0.bias, two.2.weight and 1 more"
    assert (never in watch.report()) is (turns[1] == 0)


def test_parameters_that_are_added_later_are_asked_from_then_on(tmp_path):
    model = Parts()
    optimizer = torch.optim.SGD(model.one.parameters(), lr=0.1)
    with gradlab.watch(model, optimizer, folder=tmp_path, quiet=True) as watch:
        for i, batch in enumerate(batches(6)):
            if i == 3:
                optimizer.add_param_group({"params": list(model.two.parameters())})
            optimizer.zero_grad()
            loss_of(model.one, batch).backward()
            optimizer.step()
    assert list(watch.loop.outputs[0].metrics.without.values()) == [
        name for name, _ in model.named_parameters() if "two" in name
    ]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_updates_that_are_rounded_off(dtype, tmp_path):
    """Weights in bf16 stay what they are at a rate at which weights in fp32 move."""
    model = net().to(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    with gradlab.watch(model, optimizer, folder=tmp_path, step_every=10, quiet=True) as watch:
        for x, y in batches(45):
            optimizer.zero_grad()
            F.cross_entropy(model(x.to(dtype)).float(), y).backward()
            optimizer.step()
    assert ("stay bitwise what they are" in watch.report()) is (dtype == torch.bfloat16)
