"""Steps in wrappers of optimizers, zeros before a step of the turn before, losses that a function unseen computes."""

from __future__ import annotations

import pytest
from marked import HEAD, expected, said

CASES = {
    "an optimizer that is wrapped": """
class Warming:
    def __init__(self, inner):
        self.inner, self.count = inner, 0
    def advance(self):
        self.count += 1
        self.inner.step()
def run(net, opt):
    for x, y in loader:
        F.cross_entropy(net(x), y).backward()
        opt.advance()  # expect: GL305
run(model, Warming(optimizer))
""",
    "zeros and a step before the backward pass": """
for x, y in loader:
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()  # expect: GL103
    optimizer.step()
    loss.backward()
""",
    "a step of the turn before, then zeros": """
for x, y in loader:
    optimizer.step()
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
""",
    "computed by what is not seen": """
from elsewhere import draw
for x, y in loader:
    shown, rest = draw(x, net=model)
    loss = ((shown - y) ** 2).mean()
    loss.backward()
    optimizer.step()  # expect: GL305
""",
    "begun by what is not seen": """
from elsewhere import begin
for x, y in loader:
    begin(model)
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
""",
}


@pytest.mark.parametrize("name", CASES)
def test_steps_and_zeros(name, tmp_path):
    text = HEAD + CASES[name]
    assert said(text, tmp_path) == expected(text)
