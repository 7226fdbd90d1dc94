"""Names that a function shares with its module, or with a function around it: `global` and `nonlocal`."""

from __future__ import annotations

import pytest
from audited_snippets import assert_faults

SHARED = """
net = criterion = opt = best = None
def train():
    for x, y in loader:
        criterion(net(x), y).backward()
        opt.step()  # expect: GL305
def main():
    global net, criterion, opt
    criterion = nn.CrossEntropyLoss()
    net = nn.Linear(8, 4)
    if len(loader) > 3:
        opt = torch.optim.SGD(net.parameters(), lr=0.1)
    else:
        opt = torch.optim.Adam(net.parameters(), lr=0.1)
    for epoch in range(9):
        train()
"""
CASES = {
    "called": SHARED + "main()",
    "called by nothing here": SHARED,
    "of a function around it": """
def fit(net):
    opt = None
    def begin():
        nonlocal opt
        opt = torch.optim.SGD(net.parameters(), lr=0.1)
    begin()
    for x, y in loader:
        F.cross_entropy(net(x), y).backward()
        opt.step()  # expect: GL305
""",
    "one of its own": """
opt = torch.optim.SGD(model.parameters(), lr=0.1)
def begin():
    opt = None
def fit():
    begin()
    for x, y in loader:
        F.cross_entropy(model(x), y).backward()
        opt.step()  # expect: GL305
""",
}


@pytest.mark.parametrize("name", CASES)
def test_what_another_function_has_set_is_there(name, tmp_path):
    assert_faults(CASES[name], tmp_path)
