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
    "tensors of another library": """
import engine
def fit(xs, ys):
    w, b = engine.Tensor(xs[0], grad=True), engine.Tensor(0, grad=True)
    for x, y in zip(xs, ys):
        engine.square(x * w + b - y).backward()
        w.data -= 0.1 * w.grad
        b.data -= 0.1 * b.grad
def pair(xs, ys):
    w, b = engine.start(xs)
    for x, y in zip(xs, ys):
        engine.square(x * w + b - y).backward()
        w.data -= 0.1 * w.grad
        b.data -= 0.1 * b.grad
def grow(xs, ys):
    w = torch.randn(4, requires_grad=True)
    for x, y in zip(xs, ys):
        (x * w - y).square().mean().backward()
        w.data -= 0.1 * w.grad  # expect: GL305
""",
    "tensors of a class of the project's own": """
class Number:
    def __init__(self, data):
        self.data, self.grad = data, 0.0
    def __mul__(self, other):
        return Number(self.data * other)
    def backward(self):
        self.grad = 1.0
def fit(xs):
    w = Number(1.0)
    for x in xs:
        loss = w * x
        loss.backward()
        w.data -= 0.1 * w.grad
""",
}


@pytest.mark.parametrize("name", CASES)
def test_case(name, tmp_path):
    text = HEAD + CASES[name]
    assert said(text, tmp_path) == expected(text)
