"""Comprehensions over optimizers, networks that set their own gradients to zero, and windows of one micro-batch."""

from __future__ import annotations

import pytest
from audited_snippets import assert_faults

TWO = """
judge = nn.Linear(4, 1)
second = torch.optim.SGD(judge.parameters(), lr=0.1)
"""
OWN = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 4)
    def forward(self, x, y):
        CLEAR
        return F.cross_entropy(self.inner(x), y)
net = Net()
opt = torch.optim.SGD(net.inner.parameters(), lr=0.1)
for x, y in loader:
    loss = net(x, y)
    loss.backward()
    opt.step()MARK
"""
ONE = """
def fit(net, opt, config, scaler):
    for i, (x, y) in enumerate(loader):
        loss = F.cross_entropy(net(x), y)
        if CONDITION:
            loss = loss / config.n
            loss.backward()
            if (i + 1) % config.n == 0:
                opt.step()
                opt.zero_grad()
        else:
            opt.zero_grad()
            loss.backward()
            if (i + 1) % config.n == 0:
                opt.step()
"""
CASES = {
    "two of them are set to zero": TWO
    + """
for x, y in loader:
    [o.zero_grad() for o in (optimizer, second)]
    F.cross_entropy(judge(model(x)), y).backward()
    [o.step() for o in (optimizer, second)]
""",
    "two of them are set to zero too late": TWO
    + """
for x, y in loader:
    F.cross_entropy(judge(model(x)), y).backward()
    [o.zero_grad() for o in (optimizer, second)]  # expect: GL103
    optimizer.step()
    second.step()
""",
    "one of two is not": TWO
    + """
for x, y in loader:
    [o.zero_grad() for o in (optimizer,)]
    F.cross_entropy(judge(model(x)), y).backward()
    optimizer.step()
    second.step()  # expect: GL305
""",
    "a list of optimizers, made in one": """
nets = [nn.Linear(8, 4), nn.Linear(8, 4)]
def fit(one, two):
    opts = [torch.optim.SGD(net.parameters(), lr=0.1) for net in (one, two)]
    for x, y in loader:
        (F.cross_entropy(one(x), y) + F.cross_entropy(two(x), y)).backward()
        for opt in opts:
            opt.step()
        for opt in opts:
            opt.zero_grad()
""",
    "all of a Lightning module, one or several": """
from lightning import LightningModule
class Two(LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.maker, self.judge = nn.Linear(8, 8), nn.Linear(8, 1)
    def all(self):
        found = self.optimizers()
        if isinstance(found, list):
            return found
        return [found]
    def training_step(self, batch, i):
        one, two = self.all()
        self.manual_backward(self.judge(batch).mean())
        two.zero_grad()  # expect: GL103
        two.step()
        one.zero_grad()
        self.manual_backward(self.judge(self.maker(batch)).mean())
        one.step()
""",
    "all of a Lightning module, one or several, configured": """
from lightning import LightningModule
class Two(LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.maker, self.judge = nn.Linear(8, 8), nn.Linear(8, 1)
    def all(self):
        found = self.optimizers()
        if isinstance(found, list):
            return found
        return [found]
    def configure_optimizers(self):
        judge = torch.optim.Adam(self.judge.parameters())
        return [torch.optim.Adam(self.maker.parameters()), judge]
    def training_step(self, batch, i):
        one, two = self.all()
        self.manual_backward(self.judge(batch).mean())
        two.zero_grad()  # expect: GL103
        two.step()
        one.zero_grad()
        self.manual_backward(self.judge(self.maker(batch)).mean())
        one.step()
""",
    "a network that does so": OWN.replace("CLEAR", "self.zero_grad()").replace("MARK", ""),
    "a network that does not": OWN.replace("CLEAR", "pass").replace("MARK", "  # expect: GL305"),
    "a window of one": ONE.replace("CONDITION", "config.n > 1"),
    "a window of one, compared otherwise": ONE.replace("CONDITION", "not config.n == 1"),
}


@pytest.mark.parametrize("name", CASES)
def test_marked_lines_are_found_and_no_other_fault(name, tmp_path):
    assert_faults(CASES[name], tmp_path)
