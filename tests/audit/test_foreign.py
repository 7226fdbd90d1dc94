"""What is not PyTorch's own: optimizers, networks and tensors that a project or another library makes."""

from __future__ import annotations

import pytest
from marked import HEAD, expected, said

CASES = {
    "a network with its own zero_grad": """
class Stack(nn.Module):
    def __init__(self, parts, optimizer):
        super().__init__()
        self.parts = nn.ModuleList()
        for part in parts:
            self.parts.append(part)
        self.optimizer = optimizer
    def zero_grad(self):
        for part in self.parts:
            part.zero_grad()
    def fit(self, batches):
        for x, y in batches:
            self.zero_grad()
            F.cross_entropy(self(x), y).backward()
            self.optimizer.step()
    def grow(self, batches):
        for x, y in batches:
            F.cross_entropy(self(x), y).backward()
            self.optimizer.step()  # expect: GL305
""",
    "an optimizer of the project's own": """
class Descent:
    def __init__(self, weights, rate=0.1):
        self.weights, self.rate = weights, rate
    def zero_grad(self):
        for weight in self.weights:
            weight.grad.fill(0.0)
    def step(self):
        for weight in self.weights:
            weight.data -= self.rate * weight.grad
def fit(net, batches):
    mine = Descent(net.parameters())
    for x, y in batches:
        mine.zero_grad()
        F.cross_entropy(net(x), y).backward()
        mine.step()
def grow(net, batches):
    mine = Descent(net.parameters())
    for x, y in batches:
        F.cross_entropy(net(x), y).backward()
        mine.step()  # expect: GL305
""",
}


@pytest.mark.parametrize("name", CASES)
def test_case(name, tmp_path):
    text = HEAD + CASES[name]
    assert said(text, tmp_path) == expected(text)
