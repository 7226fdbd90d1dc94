"""What happens in some iterations of a loop only: a skipped batch, a later epoch, the end of a window."""

from __future__ import annotations

import pytest
from audited_snippets import HEAD, expected, findings

CASES = {
    "no step where the norm is not finite, which is recorded as None": """
import math
def fit(amp):
    scaler = torch.amp.GradScaler("cuda", enabled=amp)
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", enabled=amp):
            loss = F.cross_entropy(model(x), y)
        if amp:
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
        else:
            loss.backward()
        norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0))
        if not math.isfinite(norm):
            norm = None
            optimizer.zero_grad()
        if amp:
            if norm is not None:
                scaler.step(optimizer)
            scaler.update()
        elif norm is not None:
            optimizer.step()
""",
    "an item is never None": """
import math
for x, y in loader:
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    worst = loss.item()
    if not math.isfinite(worst):
        worst = None
    if worst is not None:
        optimizer.step()
""",
    "a schedule from a later epoch on, and from the first": """
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
for epoch in range(8):
    if epoch >= 5:
        schedule.step()
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
def fit(verbose):
    for epoch in range(8):
        if verbose:
            schedule.step()  # expect: GL404
        if epoch >= 0:
            schedule.step()  # expect: GL404
        if epoch % 2 == 0:
            schedule.step()  # expect: GL404
        else:
            schedule.step()
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
""",
    "a step until the last iteration, and from one iteration on": """
def until(given):
    for turn in range(1, given.turns + 1):
        x, y = loader[turn % 8]
        F.cross_entropy(model(x), y).backward()
        if turn < given.turns:
            optimizer.step()
            optimizer.zero_grad()
def since(given):
    for i, (x, y) in enumerate(loader):
        F.cross_entropy(model(x), y).backward()
        if i > given.first:
            optimizer.step()
        optimizer.zero_grad()
""",
    "zero at the end of a window, before its last backward and after": """
def fit(n):
    for i, (x, y) in enumerate(loader):
        last = i == len(loader) - 1
        if last or (i + 1) % n == 0:
            optimizer.zero_grad()  # expect: GL306
        (F.cross_entropy(model(x), y) / n).backward()
        if last or (i + 1) % n == 0:
            optimizer.step()
def fine(n):
    for i, (x, y) in enumerate(loader):
        last = i == len(loader) - 1
        (F.cross_entropy(model(x), y) / n).backward()
        if last or (i + 1) % n == 0:
            optimizer.step()
            optimizer.zero_grad()
""",
    "numbers in place of the losses of a list": """
def reduced(values):
    for i in range(len(values)):
        values[i] = values[i].item()
    return values
def left(values):
    return values
def fit():
    total = kept = 0
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        [same] = left([loss])
        kept += same  # expect: GL605
        [loss] = reduced([loss])
        total += loss
""",
    "the module inside a wrapper is changed, and called": """
from torch.nn.parallel import DistributedDataParallel
from nets import frozen
def fit(net: DistributedDataParallel, epoch):
    if epoch:
        net.module = frozen(net.module, epoch)
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(net.module(x), y).backward()  # expect: GL504
        optimizer.step()
def fine(net: DistributedDataParallel, epoch):
    if epoch:
        net.module = frozen(net.module, epoch)
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()
""",
}


@pytest.mark.parametrize("name", CASES)
def test_marked_lines_are_found_and_nothing_else(name, tmp_path):
    text = HEAD + CASES[name]
    found = {f for f in findings(text, tmp_path) if f[1] not in ("GL307", "GL308")}
    assert found == expected(text)
