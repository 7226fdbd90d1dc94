"""A mistake is reported where what is wrong was made or given away, and not in a function that others use rightly."""

from __future__ import annotations

import pytest
from audited_snippets import HEAD, audited, expected

HELPERS = """
import torch
from torch import nn
from torch.nn import functional as F
def objective(guess, y, smooth=False):
    guess = guess.view(-1, 4)
    if smooth:
        return -F.log_softmax(guess, -1).mean()
    return F.cross_entropy(guess, y)
class Objective(nn.Module):
    def forward(self, guess, y):
        return objective(guess, y)
def share(each, mask):
    return (each * mask).sum() / mask.sum()
class Process:
    def plan(self, x):
        return x, torch.rand(2)
    def losses(self, net, x, y):
        x, t = self.plan(x)
        out = net(x)
        return {"loss": F.cross_entropy(out, y, reduction="none"), "out": out}
class Learner:
    def __init__(self, net, optimizer):
        self.net, self.optimizer = net, optimizer
    def step(self, x, y):
        self.optimizer.zero_grad()
        F.cross_entropy(self.net(x), y).backward()
        self.optimizer.step()
class Angle(nn.Module):
    def forward(self, one, other):
        first = one.unsqueeze(0) - one.unsqueeze(1)
        second = other.unsqueeze(0) - other.unsqueeze(1)
        return F.smooth_l1_loss(F.normalize(first, dim=-1), F.normalize(second, dim=-1))
"""
START = """
from torch.nn.parallel import DistributedDataParallel as DDP
from helpers import Angle, Learner, Objective, Process, objective
"""
LOOP = """
for x, y in loader:
    optimizer.zero_grad()
    {}
    loss.backward()
    optimizer.step()
"""
WRAPPED = START + "net, process = DDP(model), Process()"
SOFT = START + "score = objective"
TEACHER = (
    START
    + """
teacher, angle = nn.Linear(8, 4), Angle()
for x, y in loader:
    with torch.no_grad():
        known = teacher(x)
    out = model(x)
    near = F.mse_loss(out, known)
    turned = 0.5 * angle({})
    loss = near + turned
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
)
CASES = {
    "the module inside is given to what computes the loss": WRAPPED
    + LOOP.format('loss = process.losses(net.module, x, y)["loss"].mean()  # expect: GL504'),
    "the wrapper is": WRAPPED + LOOP.format('loss = process.losses(net, x, y)["loss"].mean()'),
    "the module inside, through two functions": WRAPPED
    + """
def step(inner, x, y):
    return process.losses(inner, x, y)
"""
    + LOOP.format('loss = step(net.module, x, y)["loss"].mean()  # expect: GL504'),
    "the module inside is given to an object": WRAPPED
    + """
learner = Learner(net.module, optimizer)  # expect: GL504
for x, y in loader:
    learner.step(x, y)
""",
    "a function that takes the module out itself": WRAPPED
    + """
def step(outer, x, y):
    return process.losses(outer.module, x, y)  # expect: GL504
"""
    + LOOP.format('loss = step(net, x, y)["loss"].mean()'),
    "shares for a cross entropy of another file": SOFT
    + LOOP.format("out = F.softmax(model(x), dim=1); loss = score(out, y)  # expect: GL609"),
    "in a class": SOFT + LOOP.format("out = model(x).softmax(-1); loss = Objective()(out, y)  # expect: GL609"),
    "logits": SOFT + LOOP.format("out = model(x); loss = score(out, y) + Objective()(out, y)"),
    "shares are made in the function": START
    + """
def score(x, y):
    return objective(model(x).softmax(-1), y)  # expect: GL609
"""
    + LOOP.format("loss = score(x, y)"),
    "a term of what the teacher says alone": TEACHER.format("known, known").replace(
        "known, known)", "known, known)  # expect: GL615"
    ),
    "a term of the student's": TEACHER.format("out, known"),
    "such a term in the sum itself": TEACHER.format("known, known").replace(
        "near + turned", "near + 0.5 * angle(known, known)  # expect: GL615"
    ).replace("    turned = 0.5 * angle(known, known)\n", ""),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_place_of_a_mistake(name, tmp_path):
    (tmp_path / "helpers.py").write_text(HELPERS)
    (tmp_path / "train.py").write_text(HEAD + CASES[name])
    found = audited(tmp_path / "train.py", "GL504", "GL609", "GL615")
    assert {(one.line, one.code) for one in found} == expected(HEAD + CASES[name])


def test_the_message_says_where_it_is_used(tmp_path):
    (tmp_path / "helpers.py").write_text(HELPERS)
    (tmp_path / "train.py").write_text(HEAD + CASES["the module inside is given to what computes the loss"])
    [one] = audited(tmp_path / "train.py", "GL504")
    line = HELPERS[: HELPERS.index("net(x)")].count("\n") + 1
    assert one.message.endswith(f"; used in line {line} of helpers.py")


def test_a_mean_over_no_target_is_where_it_is_made(tmp_path):
    loop = LOOP.format('loss = share(F.cross_entropy(model(x), y, reduction="none"), y != 9)')
    (tmp_path / "train.py").write_text(HEAD + HELPERS + loop)
    [one] = audited(tmp_path / "train.py", "GL607")
    line = (HEAD + HELPERS + loop).count("\n", 0, len(HEAD + HELPERS + loop.partition("loss.backward")[0])) + 1
    assert one.line == (HEAD + HELPERS).partition("/ mask.sum()")[0].count("\n") + 1
    assert one.message.endswith(f"; used in line {line} of train.py")
