"""Gradients that no step uses: in one branch of a setting, and of networks whose optimizer is forgotten."""

from __future__ import annotations

import pytest
from audited_snippets import assert_faults

BRANCHES = """
def fit(args):
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        if args.penalty:
            (loss + model[0].weight.abs().sum()).backward(){one}
        else:
            loss.backward(){two}{behind}
"""
PAIR = """
class Trainer:
    def __init__(self, maker, judge):
        self.maker, self.judge = nn.Linear(8, 8), nn.Linear(8, 1)
        self.of_judge = torch.optim.Adam(self.judge.parameters())
        self.of_maker = torch.optim.Adam(self.maker.parameters())
    def fit(self):
        for x, y in loader:
            self.judge.zero_grad()
            self.judge(self.maker(x).detach()).mean().backward()
            self.of_judge.step()
            self.maker.zero_grad()
            (-self.judge(self.maker(x))).mean().backward(){step}
"""
ALONE = """
encoder, decoder = nn.Linear(8, 8), nn.Linear(8, 4)
adam = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()])
for x, y in loader:
    encoder.zero_grad()
    decoder.zero_grad()
    F.cross_entropy(decoder(encoder(x)), y).backward(){step}
"""
INNER = """
maker, judge = nn.Linear(8, 8), nn.Linear(8, 1)
of_maker, of_judge = torch.optim.Adam(maker.parameters()), torch.optim.Adam(judge.parameters())
for epoch in range(10):
    for x, y in loader:
        of_judge.zero_grad()
        judge(maker(x).detach()).mean().backward(){step}
    for x, y in loader:
        of_maker.zero_grad()
        (-judge(maker(x))).mean().backward()
        of_maker.step()
"""
BY_HAND = """
for x, y in loader:
    for param in model.parameters():
        param.grad = None
    F.cross_entropy(model(x), y).backward(){step}
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
"""
FAULT, STEP = "  # expect: GL713", "\n            optimizer.step()"
CASES = {
    "one branch never steps": BRANCHES.format(one=STEP, two=FAULT, behind=""),
    "each branch steps": BRANCHES.format(one=STEP, two=STEP, behind=""),
    "the step is behind both": BRANCHES.format(one="", two="", behind="\n        optimizer.step()"),
    "the step is behind the loop": BRANCHES.format(one=STEP, two="", behind="\n    optimizer.step()"),
    "networks are zeroed, and the optimizer of the one is made and never stepped": PAIR.format(step=FAULT),
    "networks are zeroed, and each steps": PAIR.format(step="\n            self.of_maker.step()"),
    "another method steps": PAIR.format(step="\n    def last(self):\n        self.of_maker.step()"),
    "the only optimizer is never stepped": ALONE.format(step=FAULT),
    "the only optimizer steps": ALONE.format(step="\n    adam.step()"),
    "a loop beside one that steps": INNER.format(step=FAULT),
    "both loops step": INNER.format(step="\n        of_judge.step()"),
    "gradients are set to None": BY_HAND.format(step=FAULT),
    "gradients are set to None, and there is a step": BY_HAND.format(step="") + "    optimizer.step()\n",
}


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_used_by_a_step(name, tmp_path):
    assert_faults(CASES[name], tmp_path)
