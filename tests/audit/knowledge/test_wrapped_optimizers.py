"""Steps in wrappers of optimizers, zeros before the step of the iteration before, losses of unseen functions."""

from __future__ import annotations

import pytest
from audited_snippets import HEAD, expected, findings

CASES = {
    "an optimizer that is wrapped": """
class Warming:
    def __init__(self, inner):
        self.inner, self.count = inner, 0
    def advance(self):
        self.count += 1
        self.inner.step()
def run(net, opt):
    for x, y in loader:
        F.cross_entropy(net(x), y).backward()
        opt.advance()  # expect: GL305
run(model, Warming(optimizer))
""",
    "zeros and a step before the backward pass": """
for x, y in loader:
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    optimizer.step()  # expect: GL701
    loss.backward()
""",
    "a step of the iteration before, then zeros": """
for x, y in loader:
    optimizer.step()
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
""",
    "computed by unseen code": """
from elsewhere import draw
for x, y in loader:
    shown, rest = draw(x, net=model)
    loss = ((shown - y) ** 2).mean()
    loss.backward()
    optimizer.step()  # expect: GL305
""",
    "started by unseen code": """
from elsewhere import begin
for x, y in loader:
    begin(model)
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
""",
}


@pytest.mark.parametrize("name", CASES)
def test_steps_and_zeros(name, tmp_path):
    text = HEAD + CASES[name]
    assert findings(text, tmp_path) == expected(text)


CALLED = """
import functools
from torch.nn.parallel import DistributedDataParallel as DDP
from elsewhere import process

outer = DDP(model)
for x, y in loader:
    optimizer.zero_grad()
    for i in range(4):
        compute = functools.partial(process.training_losses, outer, x)
        BODY
    optimizer.step()
"""
LAST = """if i == 3:
            WHOLE.backward()
        else:
            with outer.no_sync():MARK
                WHOLE.backward()"""


def test_no_sync_is_needed_around_a_call_that_computes_a_loss_with_the_network(tmp_path):
    outside = "loss = compute()['loss'].mean()\n        " + LAST.replace("WHOLE", "loss")
    for body, mark in ((outside, "  # expect: GL503"), (LAST.replace("WHOLE", "compute()['loss'].mean()"), "")):
        text = HEAD + CALLED.replace("BODY", body.replace("MARK", mark))
        assert findings(text, tmp_path, "GL503") == expected(text)
