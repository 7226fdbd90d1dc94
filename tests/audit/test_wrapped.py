"""Models that a wrapper synchronises, where no_sync holds, and what is no wrapper."""

from __future__ import annotations

import pytest
from marked import agrees

CASES = {
    "no_sync kept in a name and called later": """
from contextlib import nullcontext
from torch.nn.parallel import DistributedDataParallel
n = 4
wrapped = DistributedDataParallel(model)
for i, (x, y) in enumerate(loader):
    quiet = wrapped.no_sync if i % n != 0 else nullcontext
    with quiet():  # expect: GL502
        (F.cross_entropy(wrapped(x), y) / n).backward()
    if (i + 1) % n == 0:
        optimizer.step()  # expect: GL307
        optimizer.zero_grad()
""",
    "no_sync around the backward pass of a loss that cannot be followed": """
from contextlib import nullcontext
from torch.nn.parallel import DistributedDataParallel
from elsewhere import normalized, several
wrapped = DistributedDataParallel(model)
for x, y in loader:
    optimizer.zero_grad()
    loss = normalized(wrapped(x), y)
    with wrapped.no_sync() if several() else nullcontext():  # expect: GL503
        loss.backward()
    optimizer.step()
""",
    "the wrapper, or the model where there is one process": """
from torch.nn.parallel import DistributedDataParallel
class Several(nn.Module):
    def __init__(self, one, several):
        super().__init__()
        self.one, self.several = one, several
        if several:
            self.wrapped = DistributedDataParallel(one)
    def run(self, opt, batches):
        net = self.one if not self.several else self.wrapped
        for x, y in batches:
            opt.zero_grad()
            F.cross_entropy(net(x), y).backward()
            opt.step()
""",
    "no_sync under a setting": """
from contextlib import nullcontext
from torch.nn.parallel import DistributedDataParallel
wrapped = DistributedDataParallel(model)
def run(distributed, n):
    for i, (x, y) in enumerate(loader):
        quiet = nullcontext()
        if distributed:
            quiet = wrapped.no_sync() if i % n != 0 else nullcontext()
        with quiet:  # expect: GL502
            (F.cross_entropy(wrapped(x), y) / n).backward()
        if (i + 1) % n == 0:
            optimizer.step()  # expect: GL307
            optimizer.zero_grad()
""",
    "no_sync around the backward pass of a loss put together": """
from torch.nn.parallel import DistributedDataParallel
def run(net, parts, opt, n):
    wrapped = DistributedDataParallel(net)
    for i, (x, y) in enumerate(loader):
        out = wrapped(x)
        terms = {}
        for name in parts:
            terms[name] = parts[name](out, y)
        loss = sum(terms.values()) / n
        if (i + 1) % n == 0:
            loss.backward()
            opt.step()  # expect: GL307
            opt.zero_grad()
        else:
            with wrapped.no_sync():  # expect: GL503
                loss.backward()
""",
    "a model or its wrapper, as a flag says": """
from torch.nn.parallel import DistributedDataParallel as DDP
class Trainer:
    def __init__(self, parallel=False):
        self.parallel, self.net = parallel, Net()
        self.opt = torch.optim.Adam(self.net.parameters())
        if self.parallel:
            self.wrapped = DDP(self.net)
    def train(self):
        net = self.net if not self.parallel else self.wrapped
        self.opt.zero_grad()
        loss = net(next(self.data)).mean()
        loss.backward()
        self.opt.step()
""",
    "no_sync around the whole window": """
wrapped = nn.parallel.DistributedDataParallel(model)
for parts in loader:
    optimizer.zero_grad()
    with wrapped.no_sync():  # expect: GL502
        for x, y in parts:
            (F.cross_entropy(wrapped(x), y) / 4).backward()
    optimizer.step()
for parts in loader:
    optimizer.zero_grad()
    for i in range(4):
        with wrapped.no_sync() if i < 3 else nullcontext():
            x, y = parts[i]
            (F.cross_entropy(wrapped(x), y) / 4).backward()
    optimizer.step()
for parts in loader:
    optimizer.zero_grad()
    for i, (x, y) in enumerate(parts):
        if i < len(parts) - 1:
            with wrapped.no_sync():
                (F.cross_entropy(wrapped(x), y) / 4).backward()
        else:
            (F.cross_entropy(wrapped(x), y) / 4).backward()
    optimizer.step()
""",
    "one of two wrapped models is called raw": """
first = nn.parallel.DistributedDataParallel(nn.Linear(8, 8))
second = nn.parallel.DistributedDataParallel(nn.Linear(8, 4))
both = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1)
for x, y in loader:
    both.zero_grad()
    hidden = first.module(x)  # expect: GL504
    F.cross_entropy(second(hidden), y).backward()
    both.step()
for x, y in loader:
    both.zero_grad()
    with torch.no_grad():
        hidden = first.module(x)
    F.cross_entropy(second(hidden), y).backward()
    both.step()
""",
}


@pytest.mark.parametrize("name", CASES)
def test_this_is_said_and_nothing_else(name, tmp_path):
    agrees(CASES[name], tmp_path)
