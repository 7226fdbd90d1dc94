"""What the words that a call gives decide: which branch is taken, which item of a dictionary is meant."""

from __future__ import annotations

import pytest
from audited_snippets import assert_faults

FOCAL = """
class Focal(nn.Module):
    def __init__(self, gamma=2.0, reduction="mean"):
        super().__init__()
        self.gamma, self.reduction = gamma, reduction
    def forward(self, output, target):
        entropy = F.cross_entropy(output, target, reduction="none")
        loss = (1 - torch.exp(-entropy)) ** self.gamma * entropy
        if self.reduction == "mean":
            return loss.mean()
        elif self.reduction == "sum":
            return loss.sum()
        return loss
def train(n):
    criterion = Focal(GIVEN)
    for i, (x, y) in enumerate(loader):
        loss = criterion(model(x), y)
        loss.backward()MARK
        if (i + 1) % n == 0:
            optimizer.step()
            optimizer.zero_grad()
"""
PAIR = """
class Pair:
    def __init__(self, maker, judge):
        self.maker, self.judge = maker, judge
        self.optimizers = {"m": torch.optim.SGD(maker.parameters(), 0.1), "j": torch.optim.SGD(judge.parameters(), 0.1)}
    def step(self, name, loss):
        self.optimizers[name].zero_grad()
        loss.backward()
        self.optimizers[name].step()
    def train(self):
        for x, y in loader:
            self.step("j", F.mse_loss(self.judge(self.maker(x).detach()), y))
            self.step("m", F.mse_loss(self.judge(self.maker(x)), y))
Pair(nn.Linear(8, 8), nn.Linear(8, 1)).train()
"""
CHOSEN = """
def likelihood(p, t):
    return -(t * torch.log(p)).mean()  # expect: GL601
def squared(p, t):
    return ((p - t) ** 2).mean()
def train(name):
    criterion = {"likelihood": likelihood, "squared": squared}[name]
    for x, y in loader:
        optimizer.zero_grad()
        criterion(torch.sigmoid(model(x)), y).backward()
        optimizer.step()
"""
SINCE = """
def train(n):
    last_step = -1
    for i, (x, y) in enumerate(loader):
        loss = F.cross_entropy(model(x), y)DIVIDED
        loss.backward()MARK
        if i - last_step >= n:
            optimizer.step()
            optimizer.zero_grad()
            last_step = i
"""
CASES = {
    "a reduction at its default": FOCAL.replace("GIVEN", "").replace("MARK", "  # expect: GL301"),
    "a reduction that is given": FOCAL.replace("GIVEN", 'reduction="sum"').replace("MARK", ""),
    "the optimizer under a word": PAIR,
    "the optimizer under the other word": PAIR.replace('self.step("m", ', 'self.step("j", '),
    "one of several losses": CHOSEN,
    "iterations since the last step": SINCE.replace("DIVIDED", "").replace("MARK", "  # expect: GL301"),
    "iterations since the last step, divided": SINCE.replace("DIVIDED", " / n").replace("MARK", ""),
    "a word that the loop changes": """
from accelerate import Accelerator
def train(n):
    accelerator = Accelerator(gradient_accumulation_steps=n)
    phase = "generator"
    for x, y in loader:
        with accelerator.accumulate(model):
            if phase == "generator":
                accelerator.backward(model(x).square().mean() / n)  # expect: GL302
            elif phase == "critic":
                accelerator.backward(model(x).abs().mean() / n)  # expect: GL302
            optimizer.step()
            optimizer.zero_grad()
        phase = "critic" if phase == "generator" else "generator"
""",
    "a scaler of data": """
class Data:
    def inverse_scaler(self, x):
        return x * 2
def train(inverse_scaler):
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        with torch.no_grad():
            shown = inverse_scaler(model(x))
""",
}


@pytest.mark.parametrize("name", CASES)
def test_marked_lines_are_found_and_no_other_fault(name, tmp_path):
    assert_faults(CASES[name], tmp_path)
