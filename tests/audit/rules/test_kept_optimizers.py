"""An object that keeps its network and its optimizer, and updates the weights with each batch that it is given."""

from __future__ import annotations

import pytest
from audited_snippets import HEAD, findings

ENGINE = (
    HEAD
    + """
class Engine:
    def __init__(self, net):
        self.net = nn.Linear(8, 4)
        self.optimizer = torch.optim.Adam(self.net.parameters())
    def train(self, x, y):
        loss = F.cross_entropy(self.net(x), y)
        loss.backward()
        self.optimizer.step()
"""
)
CALLER = "from a import Engine\nengine = Engine(None)\nfor x, y in loader:\n    {}engine.train(x, y)\n"


@pytest.mark.parametrize("caller", ["", CALLER.format("")])
def test_nothing_zeroes_the_gradients(caller, tmp_path):
    (tmp_path / "main.py").write_text(caller)
    assert {code for _, code in findings(ENGINE, tmp_path, "GL305")} == {"GL305"}


@pytest.mark.parametrize(
    "text",
    [
        ENGINE.replace("nn.Linear(8, 4)", "net"),
        ENGINE.replace("torch.optim.Adam(self.net.parameters())", "net.optimizer"),
        ENGINE.replace("train(self, x, y)", "adapt(self)"),
        ENGINE + "    def reset(self):\n        self.net.zero_grad()\n",
    ],
)
def test_a_caller_may_zero_what_it_made_or_is_given(text, tmp_path):
    assert not findings(text, tmp_path, "GL305")


def test_a_caller_zeroes_the_gradients(tmp_path):
    (tmp_path / "main.py").write_text(CALLER.format("engine.optimizer.zero_grad()\n    "))
    assert not findings(ENGINE, tmp_path, "GL305")
