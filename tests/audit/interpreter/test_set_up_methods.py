"""Attributes that other methods than __init__ make, which nothing in the file calls."""

from __future__ import annotations

import pytest
from audited_snippets import assert_faults

SOLVER = """
class Solver:
    def __init__(self, args):
        self.args = args
    def build_models(self):
        self.maker, self.judge = nn.Linear(8, 8), nn.Linear(8, 1)
        self.first = torch.optim.SGD(self.maker.parameters(), self.args.rate)
        self.second = torch.optim.SGD(self.judge.parameters(), self.args.rate)
        self.loss = self.likelihood
    def likelihood(self, output):
        return -torch.log(OUTPUT).mean()
    def train(self):
        for x, y in loader:
            self.second.zero_grad()
            self.loss(self.judge(self.maker(x).detach())).backward()
            self.second.step()
            self.first.zero_grad()
            self.loss(self.judge(self.maker(x))).backward()
            self.first.step()
"""
CASES = {
    "a loss and optimizers": SOLVER.replace("OUTPUT", "torch.sigmoid(output) + 1e-8"),
    "a loss of zero": SOLVER.replace("OUTPUT).mean()", "torch.sigmoid(output)).mean()  # expect: GL601"),
    "another's gradients": SOLVER.replace("OUTPUT", "torch.sigmoid(output) + 1e-8")
    .replace("            self.second.zero_grad()\n", "")
    .replace("self.second.step()", "self.second.step()\n            self.second.zero_grad()")
    .replace("(self.maker(x))).backward()", "(self.maker(x))).backward()  # expect: GL704"),
}


@pytest.mark.parametrize("name", CASES)
def test_marked_lines_are_found_and_no_other_fault(name, tmp_path):
    assert_faults(CASES[name], tmp_path)
