"""The operation that makes the first numbers that are not finite is found at its line, whenever they come."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD
from torch.utils.checkpoint import checkpoint
from watched_loops import batches, marked, net

import gradlab


def root(model, x, y, late):
    out = model(x)
    apart = (out[:, None] - out).square().sum(-1).sqrt()  # here
    return F.cross_entropy(out, y) + apart.mean()


def branch_that_is_not_taken(model, x, y, late):
    out = model(x)
    out = torch.where(out > 0, out.sqrt(), out)  # here
    return F.cross_entropy(out, y)


def logarithm(model, x, y, late):
    shares = (out := model(x)).softmax(1) * (1 - late)
    return -torch.log(shares.gather(1, y[:, None])).mean() + out.mean()  # here


def mean_of_none(model, x, y, late):
    each = F.cross_entropy(model(x), y, reduction="none")
    mask = torch.full_like(each, 1.0 - late)
    return (mask * each).sum() / mask.sum()  # here


def masked(model, x, y, late):
    scores = model[0](x).masked_fill(torch.full((16,), bool(late)), -torch.inf)
    shares = scores.softmax(1)  # here
    return F.cross_entropy(model[2](shares), y)


def overflow(model, x, y, late):
    out = model(x)
    return (out * (1 + 1e4 * late)).exp().mean()  # here


def missing_target(model, x, y, late, before=False):
    target = x[:, :4].masked_fill((x[:, :4] > 0) & bool(late), torch.nan)
    out, known = model(x), ~target.isnan()
    if before:
        return F.mse_loss(out, target.where(known, out.detach()))
    return F.mse_loss(out, target, reduction="none")[known].mean()  # here


LOSSES = [root, branch_that_is_not_taken, logarithm, mean_of_none, masked, overflow, missing_target]


def watched(loss, tmp_path, count=12):
    model = net()
    optimizer = SGD(model.parameters(), 1e-2)
    with gradlab.watch(model, optimizer, folder=tmp_path, quiet=True) as w:
        for i, (x, y) in enumerate(batches(count)):
            optimizer.zero_grad()
            loss(model, x, y, float(i == 6)).backward()
            optimizer.step()
    assert not w.broken
    return w


@pytest.mark.parametrize("loss", LOSSES)
def test_where_numbers_are_not_finite_first(loss, tmp_path):
    w = watched(loss, tmp_path)
    assert [(f.name, f.site[1]) for f in w.faults] == [("not-finite", marked(loss))]
    assert w.faults[0].update == (1 if loss in (root, branch_that_is_not_taken) else 7)


def test_weights_that_a_gradient_has_broken_are_no_matter_of_the_loss(tmp_path):
    w = watched(root, tmp_path, count=30)
    (found,) = [f for f in w.loop.outputs[0].final.findings if f.code.startswith("nan_")]
    assert (found.code, found.began) == ("nan_gradient", 1)
    assert len(found.causes) == 1 and found.causes[0].startswith("the square root of 0, whose gradient is infinite")
    assert f"test_watch_not_finite.py:{marked(root)}" in found.causes[0]


def test_the_last_update_is_named_at_the_backward_pass(tmp_path):
    w = watched(mean_of_none, tmp_path, count=7)
    assert [f.name for f in w.faults] == ["not-finite"]
    assert w.faults[0].site[0].co_name == "watched"


def test_what_stays_finite_and_what_is_recomputed_is_left_alone(tmp_path):
    passes = []

    class Counted(nn.Module):
        def forward(self, x):
            passes.append(None)
            return x.softmax(1).sqrt()

    def clamped(model, x, y, late):
        out = checkpoint(Counted(), model(x), use_reentrant=False)
        return F.cross_entropy(out, y) + (x[:, :4] * out - 9).clamp(min=0).sqrt().sum()  # the clamp stops its gradient

    def masked_before(*given):
        return missing_target(*given, before=True)

    assert not watched(masked_before, tmp_path / "masked").faults
    assert not watched(clamped, tmp_path).faults
    assert len(passes) == 2 * 12


class Offloaded(torch.autograd.graph.saved_tensors_hooks):
    """Takes out what it has put away, as offloading does: nothing may ask for it before the backward pass."""

    def __init__(self):
        kept = {}
        super().__init__(lambda x: kept.setdefault(len(kept), x) is None or len(kept) - 1, kept.pop)


def test_what_is_saved_for_the_backward_pass_is_not_taken_before_it(tmp_path):
    def loss(model, x, y, late):
        with Offloaded():
            return F.cross_entropy(model(x).exp().log(), y) / 2 + F.mse_loss(model(x), torch.randn(len(x), 4))

    assert not watched(loss, tmp_path).faults
