"""Optimizers that never step, and weights that two of them step on."""

from __future__ import annotations

import pytest
from audited_snippets import assert_faults

MADE = """
maker, judge = nn.Linear(8, 8), nn.Linear(8, 1)
first = torch.optim.SGD(judge.parameters(), lr=0.1)
second = torch.optim.SGD(maker.parameters(), lr=0.1)
"""
GAN = """
class Pair:
    def __init__(self, first, second):
        self.first, self.second = first, second
    def fit(self):
        for x, y in loader:
            self.first.zero_grad()
            judge(maker(x).detach()).mean().backward()
            self.first.step()
            self.second.zero_grad()
            (-judge(maker(x))).mean().backward()  {mark}
            self.{stepped}.step()
"""
CASES = {
    "another one steps": MADE + GAN.format(mark="# expect: GL713", stepped="first"),
    "the last one never steps": MADE
    + """
class Agent:
    def __init__(self):
        self.weight = torch.zeros(1, requires_grad=True)
        self.third = torch.optim.Adam([self.weight], lr=0.1)
    def update(self, x, learns):
        first.zero_grad()
        judge(x).mean().backward()
        first.step()
        if learns:
            self.third.zero_grad()
            (self.weight * x.mean()).mean().backward()  # expect: GL713
""",
    "each steps": MADE + GAN.format(mark="", stepped="second"),
    "another method steps": MADE
    + GAN.format(mark="", stepped="first")
    + """
    def last(self):
        self.second.step()
""",
    "each of several is zeroed, and one steps by its name": """
def fit(net, optims):
    for x, y in loader:
        for optimizer in optims.values():
            optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optims.judge.step()
""",
    "it is given away": MADE
    + GAN.format(mark="", stepped="first")
    + """
    def both(self):
        return [self.first, self.second]
""",
    "two steps on one gradient": """
other = torch.optim.Adam(model.parameters(), lr=0.1)  # expect: GL702
for x, y in loader:
    model.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
    other.step()
""",
    "two steps, each on a gradient of its own": """
other = torch.optim.Adam(model.parameters(), lr=0.1)
for x, y in loader:
    model.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
    model.zero_grad()
    model(x).square().mean().backward()
    other.step()
""",
    "two steps of two parts": """
one = torch.optim.SGD([p for p in model.parameters() if p.dim() > 1], lr=0.1)
two = torch.optim.SGD([p for p in model.parameters() if p.dim() <= 1], lr=0.1)
for x, y in loader:
    model.zero_grad()
    F.cross_entropy(model(x), y).backward()
    one.step()
    two.step()
""",
    "one model twice, the other never": MADE.replace("judge.parameters", "maker.parameters").replace(
        "second = torch.optim.SGD(maker.parameters(), lr=0.1)",
        "second = torch.optim.SGD(maker.parameters(), lr=0.1)  # expect: GL702",
    )
    + """
judge.train()
for x, y in loader:
    first.zero_grad()
    judge(maker(x)).mean().backward()
    first.step()
    second.zero_grad()
    (-judge(maker(x))).mean().backward()
    second.step()
""",
    "one optimizer, which only its schedule has": """
def train():
    opt = torch.optim.AdamW(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(opt, 10)
    for x, y in loader:
        F.cross_entropy(model(x), y).backward()  # expect: GL713
        schedule.step()
        opt.zero_grad()
class Trainer:
    def __init__(self, net, optimizer):
        self.net, self.optimizer = net, optimizer
    def fit(self, batches):
        for x, y in batches:
            self.optimizer.zero_grad()
            F.cross_entropy(self.net(x), y).backward()  # expect: GL713
            torch.nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
""",
    "one optimizer, which something else has too": """
from elsewhere import update
def train():
    opt = torch.optim.AdamW(model.parameters(), lr=0.1)
    for x, y in loader:
        F.cross_entropy(model(x), y).backward()
        update(opt)
        opt.zero_grad()
def attack():
    opt = torch.optim.AdamW(model.parameters(), lr=0.1)
    for x, y in loader:
        opt.zero_grad()
        F.cross_entropy(model(x), y).backward()
        x = x + x.grad.sign()
""",
}


CASES |= {
    "the optimizer of one holds another of its class": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 1)
    def forward(self, x):
        return self.layer(x)
actor, value = Net(), Net()
one = torch.optim.Adam(actor.parameters(), lr=0.1)
two = torch.optim.Adam(actor.parameters(), lr=0.1)  # expect: GL702
for x, y in loader:
    two.zero_grad()
    F.mse_loss(value(x), y).backward()
    two.step()  # expect: GL701
    one.zero_grad()
    actor(x).mean().backward()
    one.step()
""",
    "a model is zeroed and clipped, and nothing steps": """
for x, y in loader:
    model.zero_grad()
    F.cross_entropy(model(x), y).backward()  # expect: GL713
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
""",
    "one of two in a list, with a schedule": """
other = nn.Linear(4, 4)
second = torch.optim.SGD(other.parameters(), lr=0.1)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3)
def fit(optimizers):
    first, last = optimizers
    for x, y in loader:
        first.zero_grad()
        last.zero_grad()
        F.cross_entropy(other(model(x)), y).backward()  # expect: GL713
        last.step()
fit([optimizer, second])
""",
    "a test of memory beside the training": """
def largest_batches_fit(net, batches, optimizer):
    for x, y in batches:
        F.cross_entropy(net(x), y).backward()
        optimizer.zero_grad()
def train(net, batches):
    optimizer = torch.optim.Adam(net.parameters())
    for x, y in batches:
        F.cross_entropy(net(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
""",
}

PARTS = """
import sys
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(8, 4), nn.Linear(4, 4)
    def forward(self, x):
        return self.head(self.body(x))
net = Net()
body, head = nn.DataParallel(nn.Linear(8, 4)), nn.Linear(4, 4)
head = nn.DataParallel(head.cuda())
{one}
two = torch.optim.SGD({two}, lr=1.0){mark}
for x, y in loader:
    one.zero_grad()
    two.zero_grad()
    F.cross_entropy({out}, y).backward()
    one.step()
    two.step()
"""
GROUPS = "[{'params': body.parameters()}, {'params': head.parameters()}]"
BRANCHES = "if sys.argv[1:]:\n    one = torch.optim.SGD({}, lr=0.1)\nelse:\n    one = torch.optim.Adam({})"
BOTH = "list(body.parameters()) + list(head.parameters())"
ADDED = "one = torch.optim.Adam(body.parameters())\none.add_param_group({{'params': {}.parameters()}})"
HELD = {
    "one of several groups": (BRANCHES.format(GROUPS, GROUPS), "head.parameters()", True),
    "one of several groups, in one branch alone": (BRANCHES.format(GROUPS, "body.parameters()"), "head.parameters()", False),
    "one of a list": (f"one = torch.optim.Adam({BOTH})", "head.parameters()", True),
    "a group that is added": (ADDED.format("head"), "head.parameters()", True),
    "a group that is added, of something else": (ADDED.format("body"), "head.parameters()", False),
    "a part of a network": ("one = torch.optim.Adam(net.parameters())", "net.head.parameters()", True),
    "the other part of a network": ("one = torch.optim.Adam(net.body.parameters())", "net.head.parameters()", False),
}  # fmt: skip
for name, (one, two, wrong) in HELD.items():
    out, mark = "net(x)" if "net." in two else "head(body(x))", "  # expect: GL702" if wrong else ""
    CASES[f"two optimizers, {name}"] = PARTS.format(one=one, two=two, mark=mark, out=out)
CASES |= {
    "handed in, and never stepped": """
def update(net, value, first, second, x, y):
    second.zero_grad()
    (value(x) - y).pow(2).mean().backward()  # expect: GL713
    first.zero_grad()
    net(x).mean().backward()
    first.step()
""",
    "handed in, and stepped by another name": """
def update(net, value, first, second, x, y):
    last = [second]
    second.zero_grad()
    (value(x) - y).pow(2).mean().backward()
    first.zero_grad()
    net(x).mean().backward()
    first.step()
    last[0].step()
""",
    "made and forgotten": """
class Pair:
    def __init__(self, maker, judge):
        self.maker, self.judge = maker, judge
        self.maker_optimizer = torch.optim.Adam(maker.parameters())
        self.judge_optimizer = torch.optim.Adam(self.judge.parameters())
    def fit(self):
        for x, y in loader:
            self.judge.zero_grad()
            self.judge(self.maker(x).detach()).mean().backward()  # expect: GL713
            self.maker.zero_grad()
            (-self.judge(self.maker(x))).mean().backward()
            self.maker_optimizer.step()
""",
}
CASES |= {
    "one of two, with either rate": """
maker, judge = nn.Linear(8, 8), nn.Linear(8, 1)
if fine:
    first, second = torch.optim.SGD(judge.parameters(), lr=0.1), torch.optim.SGD(maker.parameters(), lr=0.1)
else:
    first, second = torch.optim.SGD(judge.parameters(), lr=1.0), torch.optim.SGD(maker.parameters(), lr=1.0)
for x, y in loader:
    first.zero_grad()
    judge(maker(x).detach()).mean().backward()  # expect: GL713
    second.zero_grad()
    (-judge(maker(x))).mean().backward()
    second.step()
""",
}
CASES |= {
    "zeroed with each loss of a network that begins later": """
def train(maker, judge, first, second, start, accum):
    count = 0
    for x, y in loader:
        count += 1
        out = maker(x)
        (F.mse_loss(out, y) / accum).backward()
        if count > start:
            (F.mse_loss(judge(out.detach()), y) / accum).backward()
            if count % accum == 0:
                second.step()
            second.zero_grad()  # expect: GL306
        if count % accum == 0:
            first.step()
            first.zero_grad()
    second.step()
    second.zero_grad()
    first.step()
    first.zero_grad()
""",
    "zeroed where no loss is": """
def train(maker, judge, first, second, start, accum):
    count = 0
    for x, y in loader:
        count += 1
        out = maker(x)
        (F.mse_loss(out, y) / accum).backward()
        if count > start:
            (F.mse_loss(judge(out.detach()), y) / accum).backward()
            if count % accum == 0:
                second.step()
                second.zero_grad()
        if count % accum == 0:
            first.step()
            first.zero_grad()
    second.step()
    second.zero_grad()
    first.step()
    first.zero_grad()
""",
}

NAMED = """
from nets import make
def train(config):
    nets = make(config)
    optims = {"g": torch.optim.Adam(nets["g"].parameters()), "d": torch.optim.Adam(nets["d"].parameters())}
    for x, y in loader:
        made = nets["g"](x)
        optims["d"].zero_grad()
        (nets["d"](x).mean() - nets["d"](made.detach()).mean()).backward()MARK
        optims["g"].zero_grad()
        (-nets["d"](made).mean()).backward()
        optims["g"].step()
"""
STEPPED = {
    "elsewhere": ("", "        finish(optims['d'])\ndef finish(one):\n    one.step()\n"),
    "with all": ("", "        for one in optims.values():\n            one.step()\n"),
    "by what is not seen": ("", "    return optims\n"),
}
for name, (mark, more) in STEPPED.items():
    CASES[f"of a dictionary, stepped {name}"] = NAMED.replace("MARK", mark) + more
CASES["a helper of the one never steps, and the other now and then"] = """
def judged(maker, judge, of_judge, x):
    of_judge.zero_grad()
    (judge(maker(x).detach()).mean() - judge(x).mean()).backward()  # expect: GL713
def made(maker, judge, opt, x):
    opt.zero_grad()
    (-judge(maker(x)).mean()).backward()
    opt.step()
def train():
    maker, judge = nn.Linear(8, 8), nn.Linear(8, 1)
    one, two = torch.optim.SGD(maker.parameters(), lr=0.1), torch.optim.SGD(judge.parameters(), lr=0.1)
    for i, (x, y) in enumerate(loader):
        judged(maker, judge, two, x)
        if i % 5 == 0:
            made(maker, judge, one, x)
"""


@pytest.mark.parametrize("name", CASES)
def test_each_optimizer_has_weights_and_steps_of_its_own(name, tmp_path):
    assert_faults(CASES[name], tmp_path)
