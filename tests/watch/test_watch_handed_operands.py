"""What a helper is handed is named where it is called; what it makes itself, where it makes it."""

import pytest
import torch
from torch import nn
from torch.optim import Adam
from watched_loops import batches

import gradlab

HELPERS = """
import torch
from torch.nn import functional as F
def distance(a, b):
    return F.mse_loss(a, b)
def by_hand(a, b):
    a, b = F.normalize(a, dim=-1), F.normalize(b, dim=-1)
    return (a - b).pow(2).mean()
class Agreement(torch.nn.Module):
    def forward(self, a, b):
        return distance(a, b)
def of_views(net, x):
    return F.mse_loss(net(x), net(-x))  # made here
def classes(out, y):
    return F.cross_entropy(out, y)
def softened(out, y):
    return F.cross_entropy(out.softmax(1), y)  # made here
def viewed(out, y):
    return F.cross_entropy(out.view(-1, 4), y.view(-1))
def wanted(reward, after):
    return reward + 0.9 * after
def gain(score, advantage):
    return (score * advantage).mean()
"""
CALLS = {
    "distance": "distance(net(x), net(-x))",
    "by_hand": "by_hand(net(x), net(-x))",
    "module": "Agreement()(net(x), net(-x))",
    "of_views": "of_views(net, x)",
    "classes": "classes(net(x).softmax(1), y)",
    "viewed": "viewed(net(x).softmax(1), y)",
    "softened": "softened(net(x), y)",
    "wanted": "F.mse_loss(net(x)[:, 0], wanted(y.float(), net(-x)[:, 0]))",
    "gain": "(y - net(x)[:, 0]).square().mean() - gain(policy(x).log_softmax(1)[:, 0], y - net(x)[:, 0])",
}
RIGHT = {
    "distance": "distance(net(x), net(-x).detach())",
    "by_hand": "by_hand(net(x), net(-x).detach())",
    "of_views": "F.mse_loss(net(x), net(-x).detach())",
    "classes": "classes(net(x), y)",
    "viewed": "viewed(net(x), y)",
    "wanted": "F.mse_loss(net(x)[:, 0], wanted(y.float(), net(-x)[:, 0].detach()))",
    "gain": CALLS["gain"].removesuffix("y - net(x)[:, 0])") + "(y - net(x)[:, 0]).detach())",
}
NAMES = dict.fromkeys(CALLS, "loss-without-data") | dict.fromkeys(("classes", "viewed", "softened"), "loss-input")
NAMES |= {"wanted": "target-not-detached", "gain": "advantage-not-detached"}


def faults_of(call, folder):
    text = f"{HELPERS}def loss(net, policy, x, y):\n    return {call}  # called here\n"
    path = folder / "helpers.py"
    path.write_text(text)
    names = {}
    exec(compile(text, str(path), "exec"), names)
    torch.manual_seed(0)
    net, policy = nn.Linear(8, 4), nn.Linear(8, 4)
    optimizer = Adam([*net.parameters(), *policy.parameters()], 1e-3)
    with gradlab.watch([net, policy], optimizer, folder=folder / "out", quiet=True) as watch:
        for x, y in batches(4):
            optimizer.zero_grad()
            names["loss"](net, policy, x, y).backward()
            optimizer.step()
    assert not watch.broken
    assert not watch.loop.seen.switched_off
    lines = text.split("\n")
    return [(f.name, lines[f.site[1] - 1].partition("#")[2].strip()) for f in watch.faults]


@pytest.mark.parametrize("kind", CALLS)
def test_the_line_of_an_operand(kind, tmp_path):
    mark = "made here" if kind in ("of_views", "softened") else "called here"
    assert faults_of(CALLS[kind], tmp_path) == [(NAMES[kind], mark)]


@pytest.mark.parametrize("kind", RIGHT)
def test_its_right_twin(kind, tmp_path):
    assert faults_of(RIGHT[kind], tmp_path) == []
