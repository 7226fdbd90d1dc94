"""A verdict about a loss names the line that computes it."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import Adam
from watched_loops import marked, net

import gradlab


def negated(model, x):
    return -F.mse_loss(model(x)[:, 0], x.sum(1))  # here


def watched(loss, tmp_path, count, scale=1.0, faults=()):
    model = net()
    optimizer = Adam(model.parameters(), 5e-3)
    with gradlab.watch(model, optimizer, folder=tmp_path, quiet=True) as w:
        for _ in range(count):
            optimizer.zero_grad()
            value = loss(model, torch.randn(16, 8))
            (value / scale).backward()
            optimizer.step()
    assert not w.broken and [fault.name for fault in w.faults] == list(faults)
    return w.loop.outputs[0].final


def test_a_loss_without_a_floor_is_named_with_its_line(tmp_path):
    found = watched(negated, tmp_path, 200, scale=2.0, faults=["loss-reversed"])
    assert found.verdict == "unbounded_loss"
    assert f"test_watch_loss_sites.py:{marked(negated)}: the loss falls" in found.sentence


def test_a_healthy_loss_is_not(tmp_path):
    found = watched(lambda model, x: nn.L1Loss()(model(x)[:, 0], x[:, 0]), tmp_path, 60)
    assert found.verdict == "healthy" and ".py" not in found.sentence
