"""Losses that are kept with their graph by any object: names decide nothing, objects are followed."""

from __future__ import annotations

import pytest
from audited_snippets import HEAD, STEP, expected, findings

METER = """
class Meter:
    def __init__(self):
        self.total, self.rows = 0.0, []

    def add(self, value, count=1):
        self.total += value * count
        self.rows.append(value)

"""
WINDOW = """
from accelerate import Accelerator
def fit(n):
    accelerator = Accelerator(gradient_accumulation_steps=n)
    net, opt, batches = accelerator.prepare(model, optimizer, loader)
    shown = 0
    for i, (x, y) in enumerate(batches):
        with accelerator.accumulate(net):
            loss = F.mse_loss(net(x), y)
            shown += loss / n{mark}
            accelerator.backward(loss)
            opt.step()
            opt.zero_grad()
        if {test}:
            print(shown)
            shown = 0
"""
CASES = {
    "a sum that is reset with each update of Accelerate's": WINDOW.format(test="accelerator.sync_gradients", mark=""),
    "a sum that is reset at its end": WINDOW.format(test="i + 1 == len(batches)", mark="  # expect: GL605"),
    "what an object says of its loss, and that itself": """
class Trainer:
    def __init__(self, net, judge, optimizer):
        self.net, self.judge, self.optimizer = net, judge, optimizer
    def update(self, x, y):
        made = self.judge
        made.reset()
        made.compare(self.net(x), y)
        self.optimizer.zero_grad()
        made.backward()
        self.optimizer.step()
        return made.figure(), made.mean()
    def fit(self, batches):
        shown = other = 0
        for x, y in batches:
            figure, mean = self.update(x, y)
            shown += figure
            other += mean  # expect: GL605
""",
    "a name without meaning": """
total = 0.0
for x, y in loader:
    loss = (model(x) - y).pow(2).mean()
    q = loss
    total += q  # expect: GL605
""",
    "a list as an argument": """
def run(net, opt, batches, out):
    for x, y in batches:
        opt.zero_grad()
        err = ((net(x) - y) ** 2).sum()
        err.backward()
        opt.step()
        out.append(err)  # expect: GL605

def main():
    rows = []
    run(nn.Linear(3, 4), torch.optim.SGD(model.parameters(), lr=0.1), loader, rows)
""",
    "an object as an argument receives it": METER
    + """
def run(net, opt, batches, meter):
    for x, y in batches:
        opt.zero_grad()
        err = net(x, y)
        err.backward()
        opt.step()
        meter.add(err, len(x))  # expect: GL605

run(model, optimizer, loader, Meter())
""",
    "an annotation names the object": METER
    + """
def run(net, opt, batches, meter: Meter):
    for x, y in batches:
        opt.zero_grad()
        err = net(x, y)
        err.backward()
        opt.step()
        meter.add(err)  # expect: GL605
        meter.add(err.item())
        meter.add(err.detach())
""",
    "an attribute that backward() shows to be a tensor": """
class Learner:
    def __init__(self, net, opt):
        self.net, self.opt, self.rows, self.some = net, opt, [], []

    def update(self, x, y):
        self.opt.zero_grad()
        made = self.net(x, y)
        made.value.backward()
        self.opt.step()
        self.rows.append(made.value)  # expect: GL605
        self.some.append(made.value)

    def done(self):
        self.some.clear()
""",
}


@pytest.mark.parametrize("name", CASES)
def test_a_loss_that_an_object_keeps(name, tmp_path):
    text = HEAD + CASES[name] + STEP * name.startswith("a name")
    assert findings(text, tmp_path, "GL605") == expected(text)
