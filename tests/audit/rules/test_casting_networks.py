"""Networks that may cast by themselves, of which not all is in the file of the loop."""

from __future__ import annotations

import pytest
from audited_snippets import HEAD, audited, expected

NET = """
import torch
from torch import nn
from blocks import Block

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = Block()
    def loss(self, x, y):
        return nn.functional.cross_entropy(self.block(x), y)
    def forward(self, x):
        return self.block(x)
"""
BLOCK = """
import torch
from torch import nn
class Block(nn.Module):
    def forward(self, x):
        return self.inner(x)
    def inner(self, x):
        return x
"""
CASTS = BLOCK.replace("    def forward", '    @torch.autocast("cuda")\n    def forward')
UPDATE = """
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""
METHOD = f"""
from net import Net
def train():
    net, scaler = Net(), torch.amp.GradScaler("cuda")
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for x, y in loader:
        optimizer.zero_grad()
        loss = net.loss(x, y)  # expect: GL208
{UPDATE}"""
GIVEN = f"""
from torch.amp import GradScaler, autocast
def train(net, optimizer):
    scaler = GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)  # expect: GL208
{UPDATE}"""
ZOO = f"""
import timm
def train():
    net, scaler = timm.create_model("resnet18"), torch.amp.GradScaler("cuda")
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)  # expect: GL208
{UPDATE}"""


@pytest.mark.parametrize(
    ("text", "block", "fault"),
    [
        (METHOD, BLOCK, True),
        (METHOD, CASTS, False),
        (ZOO, BLOCK, True),
        (ZOO.replace("timm", "elsewhere"), BLOCK, False),
        (GIVEN, BLOCK, True),
        (GIVEN.replace(", autocast", ""), BLOCK, False),  # a network that is handed in may cast by itself
    ],
    ids=[
        "parts in another file",
        "a part casts",
        "of a package",
        "of another package",
        "handed in, autocast imported",
        "handed in",
    ],
)
def test_forward_passes_outside_autocast(text, block, fault, tmp_path):
    (tmp_path / "net.py").write_text(NET)
    (tmp_path / "blocks.py").write_text(block)
    (tmp_path / "a.py").write_text(HEAD + text)
    found = {(f.line, f.code) for f in audited(tmp_path / "a.py") if f.severity != "advice"}
    assert found == (expected(HEAD + text) if fault else set())
