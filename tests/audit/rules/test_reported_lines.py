"""The line at which a mistake is reported, and mistakes under conditions or through several networks."""

from __future__ import annotations

import pytest
from audited_snippets import HEAD, STEP, expected, findings

CASES = {
    "a helper that does nothing else is reported at its call": """
class Learner:
    def __init__(self, net):
        self.net, self.opt = net, torch.optim.SGD(net.parameters(), lr=0.1)
    def clip(self):
        return nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
    def fit(self):
        for x, y in loader:
            self.opt.zero_grad()
            F.cross_entropy(self.net(x), y).backward()
            self.opt.step()
            self.clip()  # expect: GL101
Learner(model).fit()
""",
    "kept now and then": """
rows = []
for i, (x, y) in enumerate(loader):
    loss = F.cross_entropy(model(x), y)
    if i % 10 == 0:
        print(i, loss.item())
        rows.append(loss)  # expect: GL605
"""
    + STEP,
    "a mean that begins with the first": """
mean = None
for x, y in loader:
    loss = F.cross_entropy(model(x), y)
    mean = loss if mean is None else 0.9 * mean + 0.1 * loss  # expect: GL605
"""
    + STEP,
    "two scalers, one of them updated": """
one, two = torch.amp.GradScaler("cpu"), torch.amp.GradScaler("cpu")
other = nn.Linear(8, 4)
second = torch.optim.SGD(other.parameters(), lr=0.1)
for x, y in loader:
    optimizer.zero_grad()
    with torch.autocast("cpu"):
        loss = F.cross_entropy(model(x), y)
    one.scale(loss).backward()
    one.step(optimizer)
    one.update()
    second.zero_grad()
    with torch.autocast("cpu"):
        loss = F.cross_entropy(other(x), y)
    two.scale(loss).backward()
    two.step(second)  # expect: GL205
""",
    "the schedule at the head of an epoch that is a method": """
class Learner:
    def __init__(self, net):
        self.net, self.opt = net, torch.optim.SGD(net.parameters(), lr=0.1)
        self.plan = torch.optim.lr_scheduler.StepLR(self.opt, 10)
    def epoch(self):
        self.plan.step()  # expect: GL404
        for x, y in loader:
            self.opt.zero_grad()
            F.cross_entropy(self.net(x), y).backward()
            self.opt.step()
    def fit(self):
        for _ in range(3):
            self.epoch()
Learner(model).fit()
""",
    "a state kept in a dictionary": """
from functools import partial
def update(state, batch, bound):
    x, y = batch
    state["opt"].zero_grad()
    F.cross_entropy(state["net"](x), y).backward()
    state["opt"].step()
    nn.utils.clip_grad_norm_(state["params"], bound)  # expect: GL101
def main(net):
    params = list(net.parameters()) + []
    step = partial(update, {"net": net, "opt": torch.optim.SGD(params, lr=0.1), "params": params}, bound=1.0)
    for batch in loader:
        step(batch)
main(model)
""",
    "a network in half precision behind another": """
class Pair:
    def __init__(self, first, second):
        self.first, self.second = first.half(), second
        self.opt = torch.optim.SGD(self.first.parameters(), lr=0.1)
    def fit(self):
        for x, y in loader:
            self.opt.zero_grad()
            loss = F.cross_entropy(self.second(self.first(x.half()).float()), y)
            loss.backward()  # expect: GL210
            self.opt.step()
""",
    "and one that is not trained": """
class Pair:
    def __init__(self, first, second):
        self.first, self.second = first.half(), second
        self.opt = torch.optim.SGD(self.second.parameters(), lr=0.1)
    def fit(self):
        for x, y in loader:
            self.opt.zero_grad()
            loss = F.cross_entropy(self.second(self.first(x.half()).float()), y)
            loss.backward()
            self.opt.step()
""",
    "one or the other softmax": """
for x, y in loader:
    p = torch.sigmoid(model(x))
    loss = -torch.log(torch.where(y == 1, p, 1 - p)).mean()  # expect: GL601
"""
    + STEP,
    "a part of an unwrapped network's result": """
from accelerate import Accelerator
accelerator = Accelerator()
net, opt = accelerator.prepare(model, optimizer)
bare = accelerator.unwrap_model(net)
for x, y in loader:
    opt.zero_grad()
    loss = F.mse_loss(bare(x).sample, y)  # expect: GL504
    accelerator.backward(loss)
    opt.step()
""",
}


@pytest.mark.parametrize("name", CASES)
def test_marked_lines_are_found_and_nothing_else(name, tmp_path):
    text = HEAD + CASES[name]
    assert findings(text, tmp_path) == expected(text)


def test_a_step_past_a_scaler_is_wrong_where_its_flag_is_on(tmp_path):
    text = """
def fit(net, opt, half):
    scaler = torch.amp.GradScaler("cuda", enabled=half)
    for x, y in loader:
        with torch.autocast("cuda", enabled=half):
            loss = F.cross_entropy(net(x), y)
        opt.zero_grad()
        scaler.scale(loss).backward()
        opt.step()  # expect: GL204
        scaler.update()
"""
    assert findings(HEAD + text, tmp_path) == expected(HEAD + text)
