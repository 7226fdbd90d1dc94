"""Calls one after another on what each returns, and batches that are passed over."""

from __future__ import annotations

import pytest
from audited_snippets import assert_marked

HALF = """
scaler = torch.amp.GradScaler("cuda")
def fit(x, y):
    with torch.autocast("cuda"):
        loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    if not torch.isfinite(norm):
        return loss.detach()  # expect: GL206
    scaler.step(optimizer)
    scaler.update()
    return loss.detach()
"""
WRAPPED = """
from contextlib import nullcontext
from torch.nn.parallel import DistributedDataParallel
def train(net, opt, batches, n):
    ddp = DistributedDataParallel(net)
    for i, (x, y) in enumerate(batches):
        if y.size(0) == 0:
            continue
"""
CASES = {
    "a number taken from a function's result": HALF
    + """
total = 0.0
for x, y in loader:
    total += fit(x, y).cpu().item()
""",
    "what is left of a window, where batches may be empty": WRAPPED
    + """
        context = ddp.no_sync if (i + 1) % n != 0 else nullcontext
        with context():  # expect: GL506
            loss = F.cross_entropy(ddp(x), y) / n
            loss.backward()  # expect: GL308
        if (i + 1) % n == 0 or i + 1 == len(batches):
            opt.step()
            opt.zero_grad()
""",
    "nothing is found in what is not known": WRAPPED
    + """
        last = (i + 1) % n == 0 or i + 1 == len(batches)
        more = batches.more(i)
        if more and (i + 1) % n != 0:
            with ddp.no_sync():
                (F.cross_entropy(ddp(x), y) / n).backward()  # expect: GL308
        else:
            (F.cross_entropy(ddp(x), y) / n).backward()
        if last:
            opt.step()
            opt.zero_grad()
""",
}


@pytest.mark.parametrize("name", CASES)
def test_chained_calls(name, tmp_path):
    assert_marked(CASES[name], tmp_path)
