"""Gradients that another network's loss has left."""

from __future__ import annotations

import pytest
from audited_snippets import HEAD, audited

MADE = """
maker, judge = nn.Linear(8, 8), nn.Linear(8, 1)
first = torch.optim.SGD(judge.parameters(), lr=0.1)
second = torch.optim.SGD(maker.parameters(), lr=0.1)
for x, y in loader:
"""
CASES = {
    "zeroed after the step alone": (
        """
    judge(maker(x).detach()).mean().backward()
    first.step()
    first.zero_grad()
    second.zero_grad()
    judge(maker(x)).pow(2).mean().backward()  # expect: GL704
    second.step()
""",
        True,
    ),
    "zeroed before each": (
        """
    first.zero_grad()
    judge(maker(x).detach()).mean().backward()
    first.step()
    second.zero_grad()
    judge(maker(x)).pow(2).mean().backward()
    second.step()
""",
        False,
    ),
    "round a circle of two networks": (
        """
    made = maker(x)
    (judge(made).pow(2).mean() + F.mse_loss(maker(made), x)).backward()  # expect: GL704
    second.step()
    second.zero_grad()
    judge(made.detach()).mean().backward()
    first.step()
    first.zero_grad()
""",
        True,
    ),
    "made twice before either is judged": (
        """
    made, same = maker(x), maker(y)
    (judge(made).pow(2).mean() + F.mse_loss(same, y)).backward()
    second.step()
    second.zero_grad()
    first.zero_grad()
    judge(maker(x)).mean().backward()  # expect: GL704
    first.step()
""",
        True,
    ),
    "both at once": (
        """
    first.zero_grad()
    second.zero_grad()
    judge(maker(x)).pow(2).mean().backward()
    second.step()
    first.step()
""",
        False,
    ),
    "the loss of one, with the graph of the other": (
        """
    made = maker(x)
    score = judge(made)
    second.zero_grad()
    (score.pow(2).mean() + made.mean()).backward(retain_graph=True)
    first.zero_grad()
    score.mean().backward()  # expect: GL704
    second.step()
    first.step()
""",
        True,
    ),
    "the loss of one, detached": (
        """
    made = maker(x)
    second.zero_grad()
    judge(made).pow(2).mean().backward()
    first.zero_grad()
    judge(made.detach()).mean().backward()
    second.step()
    first.step()
""",
        False,
    ),
    "two losses of both": (
        """
    first.zero_grad()
    second.zero_grad()
    judge(maker(x)).pow(2).mean().backward()
    judge(maker(x + 1)).mean().backward()
    second.step()
    first.step()
""",
        False,
    ),
    "an encoder and a decoder, each of which feeds the other": (
        """
    first.zero_grad()
    second.zero_grad()
    judge(maker(x)).mean().backward()
    second.step()
    maker(judge(y)).mean().backward()
    first.step()
""",
        False,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_step_uses_its_own_loss_alone(name, tmp_path):
    body, wrong = CASES[name]
    (tmp_path / "a.py").write_text(text := HEAD + MADE + body)
    found = {(f.line, f.code) for f in audited(tmp_path / "a.py") if f.severity == "error"}
    marked = {(i, "GL704") for i, line in enumerate(text.split("\n"), 1) if "expect" in line}
    assert found == marked and bool(found) == wrong
