"""Recurrent networks of classes that are not seen, which are named after what they are."""

from __future__ import annotations

import pytest
from audited_snippets import findings

TEXT = """
import torch
import model
from settings import args, loader, criterion
model = model.{made}(args.kind, args.size)
if args.resume:
    with open(args.resume, "rb") as f:
        model = torch.load(f)
optimizer = torch.optim.SGD(model.parameters(), lr=30)
def train():
    hidden = model.init_hidden(args.size)
    for x, y in loader:
        hidden = hidden.detach()
        optimizer.zero_grad()
        out, hidden = model(x, hidden)
        criterion(out, y).backward()
        {clip}
        optimizer.step()
train()
"""
CLIP = "torch.nn.utils.clip_grad_norm_(model.parameters(), 1)"


@pytest.mark.parametrize(
    ("made", "clip", "found"),
    [
        ("RNNModel", "", {(18, "GL803")}),
        ("CharLSTM", "", {(18, "GL803")}),
        ("RNNModel", CLIP, set()),
        ("ConvModel", "", set()),
        ("MaskRCNN", "", set()),
    ],
)
def test_a_recurrent_network_is_clipped(made, clip, found, tmp_path):
    assert findings(TEXT.replace("{made}", made).replace("{clip}", clip), tmp_path, "GL803") == found


OWN = """
import torch
from torch import nn
from settings import loader
CELLS = {{"lstm": nn.LSTM, "conv": nn.Conv1d, "attention": nn.MultiheadAttention}}
class Block(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.inner = CELLS[kind](8, 8)
    def forward(self, x):
        return self.inner(x)
class Net(nn.Module):
    def __init__(self, kind="{kind}"):
        super().__init__()
        self.body = {made}
    def forward(self, x):
        return self.body(x)
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=30)
for x, y in loader:
    optimizer.zero_grad()
    nn.functional.cross_entropy(net(x), y).backward()
    optimizer.step()
"""
CHOSEN = [
    ("lstm", "CELLS[kind](8, 8)"),
    ("LSTM", "getattr(nn, kind)(8, 8)"),
    ("lstm", "nn.Sequential(nn.Embedding(9, 8), Block(kind))"),
    ("attention", "nn.ModuleList([Block(kind) for _ in range(4)])"),
    ("conv", "CELLS[kind](8, 8)"),
    ("Conv1d", "getattr(nn, kind)(8, 8)"),
    ("conv", "nn.ModuleList([Block(kind) for _ in range(4)])"),
]


@pytest.mark.parametrize(("kind", "made"), CHOSEN)
def test_a_layer_is_chosen_or_held_by_another(kind, made, tmp_path):
    found = findings(OWN.format(kind=kind, made=made), tmp_path, "GL803")
    assert {code for _, code in found} == ({"GL803"} if "conv" not in kind.lower() else set())


CLIPPING = """
class Own(torch.optim.Optimizer):
    def step(self, closure=None):
        for group in self.param_groups:
            {clip}
            for p in group["params"]:
                p.data.add_(p.grad, alpha=-group["lr"])
"""


@pytest.mark.parametrize("clip", ["torch.nn.utils.clip_grad_norm_(group['params'], group['most'])", ""])
def test_an_optimizer_of_the_project_may_clip_by_itself(clip, tmp_path):
    made = OWN.format(kind="lstm", made="nn.LSTM(8, 8)").replace("torch.optim.SGD(", "Own(")
    head, rest = made.split("class Net", 1)
    found = findings(f"{head}{CLIPPING.format(clip=clip or 'pass')}class Net{rest}", tmp_path, "GL803")
    assert {code for _, code in found} == (set() if clip else {"GL803"})
