"""Objects, layers and losses of unknown making, followed as far as the text goes."""

from __future__ import annotations

import pytest
from audited_snippets import HEAD, STEP, expected, findings

CASES = {
    "callbacks in a list act one after another": """
class Clipping:
    def before(self):
        nn.utils.clip_grad_norm_(self.owner.net.parameters(), 1.0)  # expect: GL102
    def after(self):
        pass
class Recording:
    def __init__(self):
        self.rows = []
    def before(self):
        pass
    def after(self):
        self.rows.append(self.owner.loss)  # expect: GL605
class Learner:
    def __init__(self, net):
        self.net, self.callbacks = net, [Clipping(), Recording()]
        self.opt = torch.optim.SGD(net.parameters(), lr=0.1)
        for callback in self.callbacks:
            callback.owner = self
    def fit(self):
        for x, y in loader:
            for callback in self.callbacks:
                callback.before()
            self.loss = F.cross_entropy(self.net(x), y)
            self.opt.zero_grad()
            self.loss.backward()
            self.opt.step()
            for callback in self.callbacks:
                callback.after()
Learner(model).fit()
""",
    "a layer of unknown making": """
from elsewhere import Layer
class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = Layer(8, 4)
    def forward(self, x):
        p = F.softmax(F.dropout(self.first(x)), dim=1)
        return p.log()  # expect: GL601
net = Network()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for x, y in loader:
    loss = F.nll_loss(net(x), y)
"""
    + STEP,
    "what a loss computes of itself": """
class RootLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = nn.MSELoss(reduction="none")
    def forward(self, mine, other):
        return torch.sqrt(self.parts(mine, other)).mean()  # expect: GL603
criterion = RootLoss()
for x, y in loader:
    loss = criterion(model(x), y)
"""
    + STEP,
    "a sum reset where it is printed": """
total = 0
for i, (x, y) in enumerate(loader):
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    total += loss  # expect: GL605
    if i % 100 == 0:
        print(total)
        total = 0
""",
    "amp from torch.cuda": """
from torch.cuda import amp  # expect: GL212
with amp.autocast():  # expect: GL212
    model(loader[0][0])
""",
    "a training_step that no framework calls may find zeros": """
class Learner:
    def __init__(self, net):
        self.net = net
        self.opt = torch.optim.SGD(net.parameters(), lr=0.1)
    def training_step(self, x, y):
        F.cross_entropy(self.net(x), y).backward()
        self.opt.step()
""",
}


@pytest.mark.parametrize("name", CASES)
def test_objects_of_unknown_making(name, tmp_path):
    text = HEAD + CASES[name]
    assert findings(text, tmp_path) == expected(text)


def test_a_network_in_another_file_is_judged_by_its_text(tmp_path):
    text = """
import torch
from torch import nn
class Network(nn.Module):
    def forward(self, x):
        return torch.log(torch.softmax(x, dim=1))  # expect: GL601
class Other(nn.Module):
    def forward(self, x):
        return torch.log(torch.softmax(x, dim=1) + 1e-6)
"""
    assert findings(text, tmp_path) == expected(text)
