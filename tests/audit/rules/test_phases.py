"""Loops over the phases of an epoch, and networks whose forward() is called by its name."""

from __future__ import annotations

import pytest
from audited_snippets import assert_faults

PHASES = """
def train(net, opt, batches):
    for epoch in range(9):
        for phase in ["train", "valid"]:
            {mode}
            for x, y in batches[phase]:
                opt.zero_grad()
                with torch.set_grad_enabled(phase == "train"):
                    loss = F.cross_entropy(net(x), y)
                    if phase == "train":
                        loss.backward()
                        opt.step()
"""
BY_NAME = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.drop = nn.Linear(8, 4), nn.Dropout()
    def forward(self, x):
        return self.drop(self.first(x))
net = Net()
opt = torch.optim.Adam(net.parameters())
for epoch in range(9):
    {mode}
    for x, y in loader:
        opt.zero_grad()
        F.cross_entropy(net.forward(x), y).backward()
        opt.step()
    net.eval(){mark}
    with torch.no_grad():
        for x, y in loader:
            print(net.forward(x))
"""
CALLED = """
from settings import Phase
def one(phase, x, y):
    loss = F.cross_entropy(model(x), y)
    if phase == Phase.TRAIN:
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()
for x, y in loader:
    one(Phase.TRAIN, x, y)
    with torch.no_grad():
        one(Phase.VALID, x, y)
"""
CASES = {
    "one phase is in no_grad()": CALLED,
    "eval() in one phase": PHASES.format(mode='if phase == "valid":\n                net.eval()  # expect: GL707'),
    "train() in the other": PHASES.format(
        mode='if phase == "valid":\n                net.eval()\n            else:\n                net.train()'
    ),
    "each phase sets its own": PHASES.format(mode='net.train(phase == "train")'),
    "forward() is called by its name": BY_NAME.format(mode="pass", mark="  # expect: GL707"),
    "forward() is called by its name, in train()": BY_NAME.format(mode="net.train()", mark=""),
}


@pytest.mark.parametrize("name", CASES)
def test_each_phase_has_a_mode(name, tmp_path):
    assert_faults(CASES[name], tmp_path)
