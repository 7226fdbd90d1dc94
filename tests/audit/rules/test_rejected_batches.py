"""Batches that are passed over: what the rest of the loop does is judged as without them."""

from __future__ import annotations

import pytest
from audited_snippets import assert_faults

CASES = {
    "a norm above a bound: the step is taken with nothing": """
for x, y in loader:
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    if torch.isfinite(norm) and norm > 10:
        optimizer.zero_grad()
    optimizer.step()
""",
    "another try with smaller parts": """
def update(batch, size):
    while size:
        try:
            optimizer.zero_grad()
            if len(batch) <= size:
                F.mse_loss(model(batch), batch).backward()
            else:
                for part in batch.split(size):
                    (F.mse_loss(model(part), part) * len(part) / len(batch)).backward()
        except RuntimeError:
            size //= 2
        else:
            break
    optimizer.step()
""",
    "batch size guard, accumulation undivided": """
n = 4
for i, (x, y) in enumerate(loader):
    if x.size(0) != 2:
        continue
    loss = F.cross_entropy(model(x), y)
    loss.backward()  # expect: GL301
    if (i + 1) % n == 0:
        optimizer.step()
        optimizer.zero_grad()
""",
    "finite guard, accumulation undivided": """
n = 4
for i, (x, y) in enumerate(loader):
    loss = F.cross_entropy(model(x), y)
    if not torch.isfinite(loss):
        optimizer.zero_grad()
        continue
    loss.backward()  # expect: GL301
    if (i + 1) % n == 0 or i + 1 == len(loader):
        optimizer.step()
        optimizer.zero_grad()
""",
    "finite guard, zero in window": """
n = 4
for i, (x, y) in enumerate(loader):
    optimizer.zero_grad()  # expect: GL306
    loss = F.cross_entropy(model(x), y) / n
    if not torch.isfinite(loss):
        optimizer.zero_grad()
        continue
    loss.backward()
    if (i + 1) % n == 0 or i + 1 == len(loader):
        optimizer.step()
""",
    "norm guard, clip after step": """
for i, (x, y) in enumerate(loader):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    if not torch.isfinite(loss):
        optimizer.zero_grad()
        continue
    optimizer.step()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # expect: GL101
""",
    "norm guard after backward, no other zero": """
for i, (x, y) in enumerate(loader):
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    if not torch.isfinite(norm):
        optimizer.zero_grad()
        continue
    optimizer.step()  # expect: GL305
""",
    "skip flag by helper": """
def bad(loss):
    return bool(torch.isnan(loss).any())
for i, (x, y) in enumerate(loader):
    loss = F.cross_entropy(model(x), y)
    if bad(loss):
        print("skip")
        optimizer.zero_grad()
        continue
    loss.backward()
    optimizer.step()  # expect: GL305
""",
    "loss > threshold guard": """
for i, (x, y) in enumerate(loader):
    loss = F.cross_entropy(model(x), y)
    if loss.item() > 100:
        optimizer.zero_grad()
        continue
    loss.backward()
    optimizer.step()  # expect: GL305
""",
    "schedule each micro with guard": """
n = 4
sched = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
for i, (x, y) in enumerate(loader):
    if x.shape[0] != 2:
        continue
    loss = F.cross_entropy(model(x), y) / n
    loss.backward()
    if (i + 1) % n == 0:
        optimizer.step()
        optimizer.zero_grad()
    sched.step()  # expect: GL401
""",
    "guard after backward in window, no scaler": """
n = 4
for i, (x, y) in enumerate(loader):
    loss = F.cross_entropy(model(x), y)
    loss.backward()  # expect: GL301
    if not torch.isfinite(loss):
        optimizer.zero_grad()
        continue
    if (i + 1) % n == 0:
        optimizer.step()
        optimizer.zero_grad()
""",
    "two guards": """
for i, (x, y) in enumerate(loader):
    if len(y) == 0:
        continue
    loss = F.cross_entropy(model(x), y)
    if loss.item() != loss.item():
        optimizer.zero_grad()
        continue
    if loss > 1e4:
        continue
    loss.backward()
    optimizer.step()  # expect: GL305
""",
    "in a function": """
def train(model, loader, optimizer, scaler, n, device, batch_size):
    for i, (x, y) in enumerate(loader):
        x, y = x.to(device), y.to(device)
        if x.shape[0] != batch_size:
            optimizer.zero_grad()
            continue
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.cross_entropy(model(x), y)
        if not torch.isfinite(loss).all():
            optimizer.zero_grad()
            continue
        scaler.scale(loss).backward()  # expect: GL301
        if (i + 1) % n == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
""",
    "gradient check loop, no other zero": """
for i, (x, y) in enumerate(loader):
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    valid = True
    for p in model.parameters():
        if p.grad is not None and not torch.isfinite(p.grad).all():
            valid = False
            break
    if not valid:
        optimizer.zero_grad()
        continue
    optimizer.step()  # expect: GL305
""",
    "length guard after backward, right": """
batch_size = 2
for i, (x, y) in enumerate(loader):
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    if len(x) != batch_size:
        optimizer.zero_grad()
        continue
    optimizer.step()
    optimizer.zero_grad()
""",
    "length guard after backward, flags": """
for i, (x, y) in enumerate(loader):
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    if x.size(0) < 2:
        optimizer.zero_grad()
        continue
    optimizer.step()
    optimizer.zero_grad()
""",
    "window with discards of whole window": """
n = 4
for i, (x, y) in enumerate(loader):
    loss = F.cross_entropy(model(x), y) / n
    loss.backward()
    if not torch.isfinite(loss):
        optimizer.zero_grad()
        continue
    if (i + 1) % n == 0:
        optimizer.step()
        optimizer.zero_grad()
""",
    "own scaling by hand with a check": """
scaler = torch.amp.GradScaler("cuda")
for i, (x, y) in enumerate(loader):
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = F.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    if torch.isfinite(norm):
        optimizer.step()
    scaler.update()
""",
    "schedule when a counter wraps": """
n = 4
sched = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
count = 0
for i, (x, y) in enumerate(loader):
    if x.shape[0] != 2:
        continue
    loss = F.cross_entropy(model(x), y) / n
    loss.backward()
    count += 1
    if count == n:
        optimizer.step()
        optimizer.zero_grad()
        sched.step()
        count = 0
""",
    "scale growth in skip": """
scaler = torch.amp.GradScaler("cuda")
for i, (x, y) in enumerate(loader):
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = F.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    if not torch.isfinite(loss):
        scaler.step(optimizer)
        scaler.update()
        continue
    scaler.step(optimizer)
    scaler.update()
""",
    "rejected batch flag": """
def run(check):
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        ok = check(x)
        if not ok:
            optimizer.zero_grad()
        optimizer.step()
        optimizer.zero_grad()
""",
    "resumed: batches of earlier epochs are passed over": """
start, n = 20, 4
for epoch in range(3):
    for i, (x, y) in enumerate(loader):
        if epoch * len(loader) + i < start:
            continue
        loss = F.cross_entropy(model(x), y)
        loss.backward()  # expect: GL301
        if (i + 1) % n == 0 or i + 1 == len(loader):
            optimizer.step()
            optimizer.zero_grad()
""",
    "resumed: batches up to the last one of before are passed over": """
def train(last_step):
    for i, (x, y) in enumerate(loader):
        if i < last_step:
            continue
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # expect: GL101
        optimizer.zero_grad()
""",
    "resumed: gradients set to None by hand": """
def train(start):
    for i, (x, y) in enumerate(loader):
        if i < start:
            continue
        F.cross_entropy(model(x), y).backward()
        for p in model.parameters():
            p.grad = None  # expect: GL103
        optimizer.step()
""",
    "all but the last batch of an epoch add up": """
for epoch in range(3):
    for i, (x, y) in enumerate(loader):
        (F.cross_entropy(model(x), y) / len(loader)).backward()
        if i < len(loader) - 1:
            continue
        optimizer.step()
        optimizer.zero_grad()
""",
}


@pytest.mark.parametrize("name", CASES)
def test_marked_lines_are_found_and_no_other_fault(name, tmp_path):
    assert_faults(CASES[name], tmp_path)
