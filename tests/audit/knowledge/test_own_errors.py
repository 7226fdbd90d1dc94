"""Errors that are divided by the prediction itself, whatever is known of its network, and distances of weights."""

from __future__ import annotations

import pytest
from audited_snippets import HEAD, STEP, expected, findings

NETWORK = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.spread = nn.Linear(8, 4), nn.Linear(8, 4)
    def forward(self, x):
        return {end}
model = Net()
for x, y in loader:
    out = model(x)
    loss = F.mse_loss(out, y)
    loss = loss + {term}
"""
RELATIVE = "((out - y).abs() / out).mean()"
ERRORS = {
    "the error by the prediction": ("self.inner(x)", RELATIVE, True),
    "of a sigmoid": ("self.inner(x).sigmoid()", RELATIVE, True),
    "of what is not known": ("self.inner(x).square() + 1e-3", RELATIVE, False),
    "by the target": ("self.inner(x) + self.inner(x).tanh()", "((out - y).abs() / y).mean()", False),
    "by what is kept away from 0": (
        "self.inner(x) + self.inner(x).tanh()",
        f"{RELATIVE[:-8]}out.abs() + 1).mean()",
        False,
    ),
    "a softplus": ("F.softplus(self.inner(x)) + 1e-3", RELATIVE, False),
    "an exp of a bounded number": ("self.inner(x).tanh().exp()", RELATIVE, False),
    "a clamp": ("self.inner(x).sigmoid().clamp(min=0.01)", RELATIVE, False),
    "a mean by a width": ("self.inner(x) + x.mean()", "((out[:, 0] - y) / out[:, 1]).pow(2).mean()", False),
}


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_that_is_divided_by_its_prediction(name, tmp_path):
    end, term, fault = ERRORS[name]
    mark = "  # expect: GL602" if fault else ""
    text = HEAD + NETWORK.replace("{end}", end).replace("{term}", term + mark) + STEP
    assert findings(text, tmp_path, "GL602") == expected(text)


LOOP = """
class Agent:
    def __init__(self):
        self.net = nn.Linear(8, 4)
        self.optimizer = torch.optim.Adam(self.net.parameters())
    def update(self, x, y, wide):
        loss = F.cross_entropy(self.net(x), y)
        {lines}
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
"""
PAIRS = {
    "of rows of weights": (
        "w = self.net.weight\nw = w.t() if wide else w",
        "((w.unsqueeze(1) - w.unsqueeze(0)) ** 2).sum(-1).sqrt()",
        True,
    ),
    "of weights by functions, with a name for the difference": (
        "gap = self.net.weight[:, None] - self.net.weight[None]",
        "torch.sqrt(torch.sum(torch.pow(gap, 2), dim=-1))",
        True,
    ),
    "of data": ("w = x", "((w.unsqueeze(1) - w.unsqueeze(0)) ** 2).sum(-1).sqrt()", False),
    "of neighbours": ("w = self.net.weight", "((w[1:] - w[:-1]) ** 2).sum(-1).sqrt()", False),
    "with a small number": ("w = self.net.weight", "(((w[:, None] - w[None]) ** 2).sum(-1) + 1e-8).sqrt()", False),
    "by norm": ("w = self.net.weight", "(w[:, None] - w[None]).norm(dim=-1)", False),
}


@pytest.mark.parametrize("name", PAIRS)
def test_distances_of_weights_from_themselves(name, tmp_path):
    made, distance, fault = PAIRS[name]
    mark = "  # expect: GL603" if fault else ""
    lines = f"{made}\ndistance = {distance}{mark}\nloss = loss - 0.1 * distance.mean()".replace("\n", "\n        ")
    text = HEAD + LOOP.replace("{lines}", lines)
    assert findings(text, tmp_path, "GL603") == expected(text)
