"""Steps behind decorators, partial functions, closures, hooks and unpacked arguments."""

from __future__ import annotations

import pytest
from loop_shapes import CLIP, STEP, Shapes, assert_broken, assert_silent

SHAPES: Shapes = {
    # name: text, what is replaced, by what, the rule, a part of its line
    "decorator_of_the_project": ("""
import functools
def timed(function):
    @functools.wraps(function)
    def inner(*args, **kwargs):
        start = time.time()
        result = function(*args, **kwargs)
        print(time.time() - start)
        return result
    return inner
@timed
def train_step(x, y):
    optimizer.zero_grad()
    criterion(model(x), y).backward()
    clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
for x, y in loader:
    train_step(x, y)
""", CLIP + "\n    " + STEP, STEP + "\n    " + CLIP, "GL101", CLIP),
    "partial": ("""
from functools import partial
clip = partial(clip_grad_norm_, max_norm=1.0)
make = partial(torch.optim.SGD, lr=0.1)
opt = make(model.parameters())
for x, y in loader:
    opt.zero_grad()
    criterion(model(x), y).backward()
    clip(model.parameters())
    opt.step()
""", "    clip(model.parameters())\n    opt.step()\n", "    opt.step()\n    clip(model.parameters())\n", "GL101", "clip(model"),
    "star_arguments": ("""
def inner(net, opt, x, y, clip=None):
    opt.zero_grad()
    criterion(net(x), y).backward()
    if clip is not None:
        clip_grad_norm_(net.parameters(), clip)
    opt.step()
def outer(*args, **kwargs):
    return inner(*args, **kwargs)
for x, y in loader:
    outer(model, optimizer, x, y, clip=1.0)
""", "    if clip is not None:\n        clip_grad_norm_(net.parameters(), clip)\n    opt.step()\n",
     "    opt.step()\n    if clip is not None:\n        clip_grad_norm_(net.parameters(), clip)\n", "GL101", "clip_grad_norm_(net"),
    "generator": ("""
class Runner:
    def __init__(self, loader):
        self.loader, self.model = loader, nn.Linear(8, 4)
        self.opt = torch.optim.SGD(self.model.parameters(), lr=0.1)
    def batches(self):
        for x, y in self.loader:
            yield x.cuda(), y.cuda()
    def fit(self):
        for x, y in self.batches():
            self.opt.zero_grad()
            nn.functional.cross_entropy(self.model(x), y).backward()
            clip_grad_norm_(self.model.parameters(), 1.0)
            self.opt.step()
""", "clip_grad_norm_(self.model.parameters(), 1.0)\n            self.opt.step()",
     "self.opt.step()\n            clip_grad_norm_(self.model.parameters(), 1.0)", "GL101", "clip_grad_norm_(self"),
}  # fmt: skip


@pytest.mark.parametrize("name", SHAPES)
def test_nothing_is_found_in_the_correct_loop(name, tmp_path):
    assert_silent(SHAPES[name], tmp_path)


@pytest.mark.parametrize("name", SHAPES)
def test_the_mistake_is_found_at_its_line(name, tmp_path):
    assert_broken(SHAPES[name], tmp_path)
