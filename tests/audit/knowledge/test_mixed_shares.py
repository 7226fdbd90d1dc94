"""The log of a mixture of distributions: of a softmax times a gate, to which the shares of copied words are added."""

from __future__ import annotations

import pytest
from audited_snippets import HEAD, expected, findings

POINTER = """
class Pointer(nn.Module):
    def __init__(self, gated):
        super().__init__()
        self.words, self.gate, self.near = nn.Linear(8, 4), nn.Linear(8, 1), nn.Linear(8, 6)
        self.gated = gated
    def forward(self, x, index, extra):
        open = None
        if self.gated:
            open = torch.sigmoid(self.gate(x))
        share = F.softmax(self.words(x), dim=1)
        if self.gated:
            near = F.softmax(self.near(x), dim=1)
            known = open * share
            if extra is not None:
                known = torch.cat([known, extra], 1)
            final = {final}
        else:
            final = share
        return final, near
net = Pointer(True)
optimizer = torch.optim.Adagrad(net.parameters(), lr=0.1)
for x, y, index, extra in loader:
    final, near = net(x, index, extra)
    gold = torch.gather(final, 1, y.unsqueeze(1)).squeeze()
    loss = -{log}.mean()
"""
STEP = "    optimizer.zero_grad()\n    loss.backward()\n    optimizer.step()\n"
ADDED = "known.scatter_add(1, index, (1 - open) * near)"
CASES = {
    "a mixture": (ADDED, "torch.log(gold)", True),
    "kept away from 0": (ADDED, "torch.log(gold + 1e-12)", False),
    "clamped": (ADDED, "torch.log(gold.clamp(min=1e-8))", False),
    "clamped in the network": (f"{ADDED}.clamp(min=1e-8)", "torch.log(gold)", False),
    "with a number added in the network": (f"{ADDED} + 1e-8", "torch.log(gold)", False),
    "the share alone": ("known", "torch.log(gold)", True),
}


@pytest.mark.parametrize("name", CASES)
def test_a_mixture_of_shares_may_be_zero(name, tmp_path):
    final, log, wrong = CASES[name]
    log = log + ".mean()  # expect: GL601" if wrong else log + ".mean()"
    text = HEAD + POINTER.replace("{final}", final).replace("{log}.mean()", log) + STEP
    assert findings(text, tmp_path, "GL601") == expected(text)


@pytest.mark.parametrize("divisor", ["(open * share).sum()", "near.sum(dim=1, keepdim=True)"])
def test_the_sum_of_a_mixture_is_not_zero(divisor, tmp_path):
    text = (
        HEAD
        + f"""
for x, y in loader:
    share, open, near = F.softmax(model(x), 1), torch.sigmoid(model(x)), F.softmax(model(x), 1)
    loss = ((open * share) / {divisor} - y).square().mean()
{STEP}"""
    )
    assert findings(text, tmp_path, "GL602") == set()
