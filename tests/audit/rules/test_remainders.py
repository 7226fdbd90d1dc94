"""What is left of a window at the end of an epoch, in scripts as people write them: each slip beside its right twin."""

from __future__ import annotations

import pytest
from audited_snippets import assert_marked

CASES = {
    "the loss of a function that is handed in, a way out of the loop, and a step on what is left": """
def train(get_loss, cfg):
    updates = 0
    for epoch in range(cfg.epochs):
        optimizer.zero_grad()
        for i, batch in enumerate(loader):
            loss = get_loss(model, batch).mean()
            (loss / cfg.accumulation).backward()
            if (i + 1) % cfg.accumulation == 0:
                optimizer.step()
                optimizer.zero_grad()
                updates += 1
            if cfg.total and cfg.total < updates:
                return
        if (i + 1) % cfg.accumulation != 0:
            optimizer.step()  # expect: GL308
            optimizer.zero_grad()
""",
    "a counter that begins anew, and a step on what it has counted": """
def train(n):
    count = 0
    for x, y in loader:
        (F.cross_entropy(model(x), y) / n).backward()
        count += 1
        if count == n:
            optimizer.step()
            optimizer.zero_grad()
            count = 0
    if count > 0:
        optimizer.step()  # expect: GL308
        optimizer.zero_grad()
""",
    "a window that has not ended passes over the step": """
def train(n):
    for i in range(len(loader)):
        x, y = loader[i]
        (F.cross_entropy(model(x), y) / n).backward()
        if (i + 1) % n != 0:  # expect: GL307
            continue
        optimizer.step()
        optimizer.zero_grad()
""",
    "left before a window that cannot be whole": """
def train(n):
    for i, (x, y) in enumerate(loader):
        if i // n >= len(loader) // n:
            break
        (F.cross_entropy(model(x), y) / n).backward()
        if (i + 1) % n != 0:
            continue
        optimizer.step()
        optimizer.zero_grad()
""",
    "so many micro-batches as are wanted, in whole windows": """
def train(n, updates):
    for i in range(updates * n):
        x, y = loader[i % 8]
        (F.cross_entropy(model(x), y) / n).backward()
        if (i + 1) % n != 0:
            continue
        optimizer.step()
        optimizer.zero_grad()
""",
    "the same, and each window is divided by its own length": """
def train(get_loss, cfg):
    updates = 0
    for epoch in range(cfg.epochs):
        optimizer.zero_grad()
        for i, batch in enumerate(loader):
            window = min(cfg.accumulation, len(loader) - i // cfg.accumulation * cfg.accumulation)
            (get_loss(model, batch).mean() / window).backward()
            if (i + 1) % cfg.accumulation == 0:
                optimizer.step()
                optimizer.zero_grad()
                updates += 1
            if cfg.total and cfg.total < updates:
                return
        if (i + 1) % cfg.accumulation != 0:
            optimizer.step()
            optimizer.zero_grad()
""",
}


@pytest.mark.parametrize("name", CASES)
def test_marked_lines_are_found_and_nothing_else(name, tmp_path):
    assert_marked(CASES[name], tmp_path)
