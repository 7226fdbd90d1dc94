"""Correct code that is easily taken for a mistake: attributes after a branch, decisions of a caller."""

from __future__ import annotations

import pytest
from audited_snippets import HEAD, STEP, expected, findings

CLASS = """
class Trainer:
    def __init__(self, args):
        self.args = args
        self.net = nn.Linear(8, 4)
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.1)
{made}
    def fit(self):
        for x, y in loader:
            self.opt.zero_grad()
            with torch.autocast("cuda", enabled=self.args.amp):
                loss = F.cross_entropy(self.net(x), y)
            if self.scaler is not None:
                self.scaler.scale(loss).backward()
                nn.utils.clip_grad_norm_(self.net.parameters(), 1.0){mark}
                self.scaler.step(self.opt)
                self.scaler.update()
            else:
                loss.backward()
                self.opt.step()
"""
MADE = {
    "else": """
        if args.amp:
            self.scaler = torch.amp.GradScaler("cuda")
        else:
            self.scaler = None
""",
    "handler": """
        try:
            self.scaler = torch.amp.GradScaler("cuda")
        except RuntimeError:
            self.scaler = None
""",
    "method": """
        if args.amp:
            self.scaled()
        else:
            self.scaler = None
    def scaled(self):
        self.scaler = torch.amp.GradScaler("cuda")
""",
}
CASES = {
    "the caller of the loop decides whether there is a scaler": """
def epoch(net, opt, scaler):
    for x, y in loader:
        opt.zero_grad()
        with torch.autocast("cuda"):
            loss = F.cross_entropy(net(x), y)
        if scaler:
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
        else:
            loss.backward()
            opt.step()
epoch(model, optimizer, None)
""",
    "one of several returns has a scaler": """
def pick(mode):
    if mode == "amp":
        return torch.amp.GradScaler("cuda"), 1
    return None, 1
def epoch(net, opt, mode):
    scaler, _ = pick(mode)
    for x, y in loader:
        opt.zero_grad()
        with torch.autocast("cuda", enabled=mode == "amp"):
            loss = F.cross_entropy(net(x), y)
        if scaler is not None:
            scaler.scale(loss).backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)  # expect: GL201
            scaler.step(opt)
            scaler.update()
        else:
            loss.backward()
            opt.step()
""",
    "a loss that receives the number of tokens of its window": """
class Trainer:
    def __init__(self, net, build, n):
        self.net, self.n = net, n
        self.loss_fn = build()
        self.opt = torch.optim.SGD(net.parameters(), lr=0.1)
    def update(self, batches):
        self.opt.zero_grad()
        total_tokens = sum(y.numel() for _, y in batches)
        for i in range(self.n):
            x, y = batches[i]
            loss = self.loss_fn(self.net(x), y, total_tokens)
            loss.backward()
        self.opt.step()
""",
    "a program's flag ends no window": """
def check(net, opt, batch):
    x, y = batch
    opt.zero_grad()
    F.cross_entropy(net(x), y).backward()
    opt.step()
def epoch(net, opt, training):
    for x, y in loader:
        loss = F.cross_entropy(net(x), y)
        if training:
            opt.zero_grad()
            loss.backward()
            opt.step()
def saliency(net, x):
    net(x).sum().backward()
def main(args):
    net = nn.Linear(8, 4)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    if args.check:
        check(net, opt, loader[0])
    epoch(net, opt, args.training)
    saliency(net, loader[0][0])
""",
    "a schedule that the project defines may count from one": """
class Noam(torch.optim.lr_scheduler.LRScheduler):
    def get_lr(self):
        return [base * max(self.last_epoch, 1) ** -0.5 for base in self.base_lrs]
rates = Noam(optimizer)
for x, y in loader:
    rates.step()
    loss = F.cross_entropy(model(x), y)
"""
    + STEP,
    "a schedule as an argument, by its annotation": """
from torch.optim import lr_scheduler
def fit(net, opt, scheduler: lr_scheduler.LRScheduler):
    for x, y in loader:
        opt.zero_grad()
        F.cross_entropy(net(x), y).backward()
        scheduler.step()  # expect: GL402
        opt.step()
""",
    "a pipeline's schedule": """
from torch.optim import lr_scheduler
def fit(net, opt, schedule, first):
    for x, y in loader:
        opt.zero_grad()
        if first:
            schedule.step(x)
        else:
            schedule.step()
        F.cross_entropy(net(x), y).backward()
        opt.step()
""",
    "the likelihood of counts": """
for x, y in loader:
    eta = model(x)
    loss = (torch.exp(eta) - y * eta).mean()
"""
    + STEP
    + """
for x, y in loader:
    eta = model(x)
    loss = (torch.exp(eta) - y).abs().mean()  # expect: GL604
"""
    + STEP
    + """
def count_loss(eta, y):
    return (eta.exp() - y * eta).mean()
def other_loss(eta, y):
    return (eta.exp() - y).abs().mean()  # expect: GL604
def rate_loss(log_rate, y):
    return (log_rate.exp() - y).abs().mean()
""",
}


@pytest.mark.parametrize("made", MADE)
@pytest.mark.parametrize("unscaled", [True, False])
def test_an_attribute_set_in_a_branch(made, unscaled, tmp_path):
    mark = "  # expect: GL201" if unscaled else ""
    text = HEAD + CLASS.format(made=MADE[made], mark=mark)
    if not unscaled:
        text = text.replace(
            "                nn.utils.clip",
            "                self.scaler.unscale_(self.opt)\n                nn.utils.clip",
        )
    assert findings(text, tmp_path) == expected(text)


@pytest.mark.parametrize("name", CASES)
def test_marked_lines_are_found_and_nothing_else(name, tmp_path):
    text = HEAD + CASES[name]
    assert {(line, code) for line, code in findings(text, tmp_path) if not code.startswith("GL8")} == expected(text)
