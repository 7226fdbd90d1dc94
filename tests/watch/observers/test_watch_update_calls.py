"""The list of one update's calls: in their order, with their lines, those of micro-batches folded."""

import re

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from watched_loops import batches, net

import gradlab
from gradlab.watch.readers.update_calls import Call, folded


def listed(watch):
    """Without lines and numbers."""
    return [re.sub(r"\S+\.py:\d+ +|[-+e\d.]{3,}", "", line).strip() for line in watch.update_calls().split("\n")]


def test_accumulation_under_a_loss_scale(tmp_path):
    model, data = net(), list(batches(16))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    schedule, scaler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9), torch.amp.GradScaler("cpu")
    with gradlab.watch(model, optimizer, scaler=scaler, folder=tmp_path, quiet=True) as watch:
        for i in range(8):
            for x, y in data[2 * i : 2 * i + 2]:
                scaler.scale(F.cross_entropy(model(x), y) / 2).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            schedule.step()
    assert listed(watch) == [
        "scaler.update(): at a loss scale of",
        "gradients of optimizer 0 (AdamW) are zeroed",
        "step of ExponentialLR: lr  from here on",
        "forward pass of Sequential (2 times)",
        "cross_entropy:  (2 times)",
        "backward pass: ; gradients for 4 of 4 of optimizer 0 (AdamW) (2 times)",
        "scaler.unscale_(): at a loss scale of",
        "clipping: at 1, a norm of",
        "step of optimizer 0 (AdamW): lr",
    ]


def test_what_a_backward_pass_reaches_and_where_graphs_end(tmp_path):
    maker, judge = nn.Linear(4, 8), net()
    first, second = (torch.optim.SGD(m.parameters(), 1e-2) for m in (maker, judge))
    with gradlab.watch([maker, judge], [first, second], folder=tmp_path, quiet=True) as watch:
        for _, y in batches(8):
            fake = maker(torch.randn(16, 4)).detach()
            F.cross_entropy(judge(fake), y).backward()
            second.step()
            second.zero_grad()
    assert listed(watch) == [
        "gradients of optimizer 1 (SGD) are zeroed",
        "forward pass of Linear",
        "detach() of a tensor of shape (16, 8): its graph ends here",
        "forward pass of Sequential",
        "cross_entropy:",
        "backward pass: ; gradients for 4 of 4 of optimizer 1 (SGD)",
        "step of optimizer 1 (SGD): lr",
    ]


def test_functions_are_restored_also_where_the_loop_ends_within_the_update(tmp_path):
    model = net()
    optimizer, original = torch.optim.SGD(model.parameters(), 0.1), torch.autograd.backward
    with pytest.raises(ValueError), gradlab.watch(model, optimizer, folder=tmp_path, quiet=True):
        for i, (x, y) in enumerate(batches(8)):
            F.cross_entropy(model(x), y).backward()
            if i == 5:
                raise ValueError
            optimizer.step()
    assert torch.autograd.backward is original
    assert not model._forward_pre_hooks


@pytest.mark.parametrize(
    ("given", "expected"), [("aabb", "a2b2"), ("xababab", "x1a3b3"), ("abcabc", "a2b2c2"), ("abac", "a1b1a1c1")]
)
def test_repeated_calls_become_one(given, expected):
    assert "".join(f"{call.what}{call.times}" for call in folded([Call(None, each) for each in given])) == expected


@pytest.mark.parametrize(("sign", "pointed_to"), [(1, False), (-1, True)])
def test_the_report_points_to_it_where_no_mistake_explains_a_failure(sign, pointed_to, tmp_path):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with gradlab.watch(model, optimizer, folder=tmp_path, quiet=True) as watch:
        for x, y in batches(50):
            optimizer.zero_grad()
            (sign * model(x).square().mean() + 0 * y.sum()).backward()
            optimizer.step()
    assert not watch.faults
    assert ("watch.update_calls()" in watch.report()) is pointed_to
