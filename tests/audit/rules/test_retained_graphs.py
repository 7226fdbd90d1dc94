"""Losses kept with their graphs, and what only looks like it."""

from __future__ import annotations

import pytest
from audited_snippets import STEP, assert_marked

CASES = {
    "a sum of a batch's own losses is no kept loss": """
for x, y in loader:
    loss = 0
    for part in x:
        loss += F.mse_loss(model(part), y)
    optimizer.zero_grad()
    torch.amp.GradScaler("cpu", enabled=False).scale(loss).backward()
    optimizer.step()
""",
    "losses appended and then added up are no kept losses": """
for x, y in loader:
    parts = []
    for part in x:
        parts.append(F.mse_loss(model(part), y))
    loss = sum(parts)
    loss = loss + 0.1 * parts[0]
"""
    + STEP,
    "kept in an attribute": """
class Learner:
    def __init__(self):
        self.model = nn.Linear(8, 4)
        self.opt = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.total = 0
    def update(self, x, y):
        loss = F.cross_entropy(self.model(x), y)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        self.total += loss  # expect: GL605
    def fit(self, loader):
        for x, y in loader:
            self.update(x, y)
""",
    "total = total + loss keeps a graph as += does": """
total = 0.0
for x, y in loader:
    loss = F.cross_entropy(model(x), y)
    total = total + loss  # expect: GL605
"""
    + STEP,
    "a sum in a dictionary": """
stats = {"loss": 0.0, "seen": 0}
for x, y in loader:
    loss = F.cross_entropy(model(x), y)
    stats["loss"] = stats["loss"] + loss  # expect: GL605
    stats["seen"] = stats["seen"] + 1
"""
    + STEP,
    "a sum of numbers in a dictionary, and the latest loss": """
stats = {"loss": 0.0, "last": None}
for x, y in loader:
    loss = F.cross_entropy(model(x), y)
    stats["loss"] = stats["loss"] + loss.item()
    stats["last"] = loss
"""
    + STEP,
    "what a criterion returns beside the loss may be a number": """
def run(net, criterion, opt, batches):
    log = []
    for x, y in batches:
        opt.zero_grad()
        loss, parts = criterion(net(x), y)
        loss.backward()
        opt.step()
        log.append(parts["total"])
""",
    "a running mean of losses": """
mean, other = 0.0, 0.0
for x, y in loader:
    loss = F.cross_entropy(model(x), y)
    mean = 0.9 * mean + 0.1 * loss  # expect: GL605
    other = 0.9 * other + 0.1 * loss.item()
    loss = 0.5 * loss + 0.1 * loss
"""
    + STEP,
    "a number for the log": """
log, seen = [], []
for x, y in loader:
    out = model(x)
    loss = out.sum() + 1
    log.append(out.mean())  # expect: GL605
    log += [out.mean()]  # expect: GL605
    log += [out.mean().item()]
    seen.append(out)
"""
    + STEP,
    "a sum restarted for each batch": """
for x, y in loader:
    total, count = 0, 0
    for part in x.chunk(2):
        loss = F.cross_entropy(model(part), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss
    print(total)
    pass
""",
    "a sum set back after each batch": """
total = 0
for x, y in loader:
    pass
    for part in x.chunk(2):
        loss = F.cross_entropy(model(part), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss
    print(total)
    total = 0
""",
    "a list emptied after each batch": """
total = []
for x, y in loader:
    pass
    for part in x.chunk(2):
        loss = F.cross_entropy(model(part), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total.append(loss)
    print(total)
    total.clear()
""",
    "a sum over all batches": """
total = 0
for x, y in loader:
    pass
    for part in x.chunk(2):
        loss = F.cross_entropy(model(part), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss  # expect: GL605
    print(total)
    pass
""",
    "a sum over the batches of an epoch": """
for loader in [loader] * 9:
    total = 0
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        total += loss  # expect: GL605
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
""",
    "sums restarted by a method, with a window, and cut off": """
class Run:
    def reset(self):
        self.total, self.count = 0, 0
    def train(self, n):
        total, mean = 0, 0
        for i, (x, y) in enumerate(loader):
            self.reset()
            if i % n == 0:
                total = 0
            loss = F.cross_entropy(model(x), y)
            (loss / n).backward()  # expect: GL308
            total += loss
            self.total += loss
            mean = 0.9 * mean + 0.1 * loss
            mean = mean.detach()
            if (i + 1) % n == 0 or i + 1 == len(loader):
                optimizer.step()
                optimizer.zero_grad()
""",
}


CASES |= {
    "a meter whose class is not seen, where another of its class receives numbers": """
from elsewhere import AverageMeter, Tracker, score
losses = AverageMeter()
terms = AverageMeter()
shares = AverageMeter()
kept = Tracker()
for x, y in loader:
    out = model(x)
    term = F.mse_loss(out, x)
    loss = F.cross_entropy(out, y) + 0.1 * term
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.update(loss.item())
    terms.update(0.1 * term, 8)  # expect: GL605
    shares.update(score(out, y))
    kept.update(loss)
""",
    "a term of the loss, by its key": """
def fit(net, opt):
    first, counts = [], []
    for x, y in loader:
        out = net(x, y)
        loss = out["classes"] + out["boxes"] / out["number"]
        opt.zero_grad()
        loss.backward()
        opt.step()
        first.append(out["classes"])  # expect: GL605
        counts.append(out["number"])
""",
}


@pytest.mark.parametrize("name", CASES)
def test_marked_lines_are_found_and_nothing_else(name, tmp_path):
    assert_marked(CASES[name], tmp_path)
