"""What a name is bound to after many branches, each of which may have changed it."""

from __future__ import annotations

import ast
import time
from pathlib import Path

import pytest
from audited_snippets import HEAD, expected, findings

from gradlab.audit.trace.choices import choice
from gradlab.audit.trace.conditions import Atom, negation
from gradlab.audit.trace.iterables import members
from gradlab.audit.trace.values import Value

BRANCH = """
        if self.flags[{i}]:
            self.best = self.one if self.best is None else self.two
            self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.{i}) if self.best else None
        else:
            self.best = self.best or self.optimizer
"""


def test_choices_are_not_nested():
    value = Value("optimizer", "first")
    for i in range(50):
        test = ("atom", Atom(f"flag {i}"))
        other = choice([(test, Value("optimizer", f"{i}")), (negation(test), value)])
        value = choice([(negation(test), other), (test, value)])
    assert len(members(value)) <= 6
    assert not any(one.choice for _, one in value.choice)


def test_a_value_is_only_once_among_the_alternatives():
    one, two = Value("optimizer", "one"), Value("optimizer", "two")
    tests = [("atom", Atom(name)) for name in "ab"]
    inner = choice([(tests[0], one), (negation(tests[0]), two)])
    outer = choice([(tests[1], one), (negation(tests[1]), inner)])
    assert [value.name for _, value in outer.choice] == ["one", "two"]


@pytest.mark.timeout(60)
def test_many_branches_take_little_time(tmp_path: Path):
    text = HEAD + "\nclass Trainer:\n    def fit(self, loader):" + "".join(BRANCH.format(i=i) for i in range(24))
    text += "        for x, y in loader:\n            F.cross_entropy(self.net(x), y).backward()\n"
    text += "            if self.best:\n                self.best(self.optimizer, self.best)\n"
    ast.parse(text)
    began = time.process_time()
    assert findings(text, tmp_path) == expected(text)
    assert time.process_time() - began < 10


STOPPED = """
def fit(loader, scheduler_steps, most):
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10)
    for i, (x, y) in enumerate(loader):
        if i == most:
            break
        (F.cross_entropy(model(x), y) / 4).backward()
        if (i + 1) % 4 == 0 or i + 1 == len(loader):
            optimizer.step()
            optimizer.zero_grad()
        schedule.step()  # expect: GL401
"""


def test_a_loop_that_may_end_early_is_the_same_in_each_iteration(tmp_path: Path):
    text = HEAD + STOPPED
    assert {one for one in findings(text, tmp_path) if one[1] != "GL308"} == expected(text)


LOSSES = """
from elsewhere import likelihood

for i, (x, y) in enumerate(loader):
    LINE
    loss.backward()  # expect: WHAT
    if (i + 1) % 4 == 0 or i + 1 == len(loader):
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("loss = model.loss(x, y)", "GL301"),
        ("loss, _ = likelihood(model, x, y)", "GL301"),
        ("loss, _ = likelihood(model, x, args)", ""),
        ("loss = (F.cross_entropy(model(x), y, reduction='none') * weights).mean()", "GL301"),
        ("loss = (F.cross_entropy(model(x), y, reduction='none') * shares).sum()", ""),
    ],
)
def test_what_computes_a_loss_may_know_the_window(line: str, what: str, tmp_path: Path):
    text = HEAD + LOSSES.replace("LINE", line).replace("  # expect: WHAT", f"  # expect: {what}" if what else "")
    assert findings(text, tmp_path) == expected(text)


SOFTMAX = """
for x, y in loader:
    hidden = transform(x)
    output = torch.log(F.softmax(hidden, dim=1))  # expect: GL601
    loss = F.nll_loss(output, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def test_a_softmax_and_its_logarithm_where_a_function_trains(tmp_path: Path):
    text = HEAD + "def fit(transform):\n" + SOFTMAX.replace("\n", "\n    ").rstrip() + "\n"
    assert findings(text, tmp_path) == expected(text)
    apart = text.replace("        output =", "        with torch.no_grad():\n            output =").replace(
        "  # expect: GL601", ""
    )
    assert findings(apart, tmp_path) == {(14, "GL712")}


EITHER = """
class Trainer:
    def __init__(self, whole):
        if whole:
            self.optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
            self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 10)
        else:
            self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 30)

    def fit(self):
        for x, y in loader:
            self.optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            self.schedule.step()  # expect: GL402
            self.optimizer.step()
"""


def test_a_schedule_made_in_the_branch_of_its_optimizer_belongs_to_it(tmp_path: Path):
    text = HEAD + EITHER
    assert findings(text, tmp_path) == expected(text)
