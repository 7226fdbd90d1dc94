"""A rate or a decay that makes up for an undivided loss, and schedules that do not."""

from __future__ import annotations

import pytest
from audited_snippets import assert_faults

CASES = {
    "rate of a schedule made of counters": """
n = 4
warmup = 10
for i, (x, y) in enumerate(loader):
    lr = 0.1 * min(1.0, (i + 1) / (warmup * n))
    for g in optimizer.param_groups:
        g["lr"] = lr
    F.cross_entropy(model(x), y).backward()  # expect: GL301
    if (i + 1) % n == 0 or i + 1 == len(loader):
        optimizer.step()
        optimizer.zero_grad()
""",
    "counter times rate": """
n = 4
step = 0
for x, y in loader:
    lr = 0.1 * step / 100
    for g in optimizer.param_groups:
        g["lr"] = lr
    F.cross_entropy(model(x), y).backward()  # expect: GL301
    step += 1
    if step % n == 0:
        optimizer.step()
        optimizer.zero_grad()
""",
    "counter is an argument": """
def train(model, loader, optimizer, it, n, base):
    for x, y in loader:
        lr = base * it / 1000
        optimizer.param_groups[0]["lr"] = lr
        F.cross_entropy(model(x), y).backward()  # expect: GL301
        it = it + 1
        if it % n == 0:
            optimizer.step()
            optimizer.zero_grad()
""",
    "decay iterations": """
import math
n = 4
max_iters = 1000
lr_decay_iters = max_iters // n
def get_lr(it):
    decay_ratio = (it - 10) / (lr_decay_iters - 10)
    return 0.1 * 0.5 * (1 + math.cos(math.pi * decay_ratio / n))
for i, (x, y) in enumerate(loader):
    lr = get_lr(i // n)
    for g in optimizer.param_groups:
        g["lr"] = lr
    F.cross_entropy(model(x), y).backward()  # expect: GL301
    if (i + 1) % n == 0 or i + 1 == len(loader):
        optimizer.step()
        optimizer.zero_grad()
""",
    "linear scaling": """
n = 4
base = 0.1
lr = base * n * 2 / 256
sgd = torch.optim.SGD(model.parameters(), lr=lr)
for i, (x, y) in enumerate(loader):
    F.cross_entropy(model(x), y).backward()  # expect: GL301
    if (i + 1) % n == 0 or i + 1 == len(loader):
        sgd.step()
        sgd.zero_grad()
""",
    "epochs counted in windows": """
n = 4
decay = 0.5 ** (len(loader) // n)
for i, (x, y) in enumerate(loader):
    F.cross_entropy(model(x), y).backward()  # expect: GL301
    if (i + 1) % n == 0 or i + 1 == len(loader):
        optimizer.step()
        optimizer.zero_grad()
""",
    "right: rate divided in place": """
n = 4
for g in optimizer.param_groups:
    g["lr"] /= n
for i, (x, y) in enumerate(loader):
    F.cross_entropy(model(x), y).backward()
    if (i + 1) % n == 0 or i + 1 == len(loader):
        optimizer.step()
        optimizer.zero_grad()
""",
    "right: decay times n": """
n = 4
sgd = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=1e-4 * n)
for i, (x, y) in enumerate(loader):
    F.cross_entropy(model(x), y).backward()
    if (i + 1) % n == 0 or i + 1 == len(loader):
        sgd.step()
        sgd.zero_grad()
""",
    "right: by a share": """
n = 4
share = 1.0 / n
sgd = torch.optim.SGD(model.parameters(), 0.1 * share)
for i, (x, y) in enumerate(loader):
    F.cross_entropy(model(x), y).backward()
    if (i + 1) % n == 0 or i + 1 == len(loader):
        sgd.step()
        sgd.zero_grad()
""",
    "right: args": """
def main(args):
    args.lr = args.lr / args.accum_iter
    sgd = torch.optim.SGD(model.parameters(), args.lr)
    for i, (x, y) in enumerate(loader):
        F.cross_entropy(model(x), y).backward()
        if (i + 1) % args.accum_iter == 0 or i + 1 == len(loader):
            sgd.step()
            sgd.zero_grad()
""",
    "right: window loop": """
n = 4
sgd = torch.optim.SGD(model.parameters(), lr=0.1 / n)
batches = iter(loader)
for step in range(2):
    for k in range(n):
        x, y = next(batches)
        F.cross_entropy(model(x), y).backward()
    sgd.step()
    sgd.zero_grad()
""",
    "schedule in window loop": """
n = 4
batches = iter(loader)
for step in range(2):
    lr = 0.1 * step / 2
    for g in optimizer.param_groups:
        g["lr"] = lr
    for k in range(n):
        x, y = next(batches)
        F.cross_entropy(model(x), y).backward()  # expect: GL301
    optimizer.step()
    optimizer.zero_grad()
""",
}


@pytest.mark.parametrize("name", CASES)
def test_marked_lines_are_found_and_no_other_fault(name, tmp_path):
    assert_faults(CASES[name], tmp_path)
