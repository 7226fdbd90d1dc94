"""Updates without an optimizer, and optimizers that call the loss themselves: gradients that are never zeroed add up."""

from __future__ import annotations

import pytest
from audited_snippets import HEAD, expected, findings

CASES = {
    "tensors of the program": """
w = torch.randn(8, 4, requires_grad=True)
for x, y in loader:
    loss = F.mse_loss(x @ w, y)
    loss.backward()
    with torch.no_grad():
        w -= 0.1 * w.grad  # expect: GL305
""",
    "through .data": """
w = torch.randn(8, 4, requires_grad=True)
for x, y in loader:
    loss = F.mse_loss(x @ w, y)
    loss.backward()
    w.data.sub_(0.1 * w.grad.data)  # expect: GL305
""",
    "a list of them": """
weights = [torch.randn(8, 4, requires_grad=True), torch.zeros(4, requires_grad=True)]
for x, y in loader:
    loss = F.cross_entropy(x @ weights[0] + weights[1], y)
    loss.backward()
    for w in weights:
        w.data += -0.1 * w.grad  # expect: GL305
""",
    "a list of them, set to zero": """
weights = [torch.randn(8, 4, requires_grad=True), torch.zeros(4, requires_grad=True)]
for x, y in loader:
    loss = F.cross_entropy(x @ weights[0] + weights[1], y)
    for w in weights:
        w.grad = None
    loss.backward()
    for w in weights:
        w.data += -0.1 * w.grad
""",
    "set to zero after it": """
w = torch.randn(8, 4, requires_grad=True)
for x, y in loader:
    loss = F.mse_loss(x @ w, y)
    loss.backward()
    with torch.no_grad():
        w -= 0.1 * w.grad
    w.grad.zero_()
""",
    "an input that goes up": """
for x, y in loader:
    x.requires_grad_()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    x.data = x.data + 0.1 * x.grad.sign()
""",
    "a closure that LBFGS calls many times": """
solver = torch.optim.LBFGS(model.parameters())
def again():
    loss = F.mse_loss(model(x), y)
    loss.backward()
    return loss
solver.zero_grad()
solver.step(again)  # expect: GL305
""",
    "a closure that begins at zero": """
def fit(net, x, y):
    solver = torch.optim.LBFGS(net.parameters())
    def again():
        solver.zero_grad()
        loss = F.mse_loss(net(x), y)
        loss.backward()
        return loss
    for _ in range(3):
        solver.step(again)
""",
}


@pytest.mark.parametrize("name", CASES)
def test_manual_updates_need_zeroed_gradients(name, tmp_path):
    text = HEAD + CASES[name]
    assert findings(text, tmp_path) == expected(text)
