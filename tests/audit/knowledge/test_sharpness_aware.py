"""SAM's two steps: to where the loss is worst nearby, and the update from there."""

from __future__ import annotations

import pytest
from audited_snippets import HEAD, expected, findings

CASES = {
    "the plain loop": """
def fit(opt):
    for x, y in loader:
        F.cross_entropy(model(x), y).backward()
        opt.first_step(zero_grad=True)
        F.cross_entropy(model(x), y).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.second_step(zero_grad=True)
""",
    "clipped too late": """
def fit(opt):
    for x, y in loader:
        F.cross_entropy(model(x), y).backward()
        opt.first_step(zero_grad=True)
        F.cross_entropy(model(x), y).backward()
        opt.second_step(zero_grad=True)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # expect: GL101
""",
    "the second step goes past the scaler": """
def fit(opt, scaler: torch.amp.GradScaler):
    for x, y in loader:
        with torch.autocast("cuda"):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        opt.first_step(zero_grad=True)
        with torch.autocast("cuda"):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        opt.second_step(zero_grad=True)  # expect: GL204
        scaler.update()
""",
    "the scale stays where the norm is not finite": """
def fit(opt, scaler: torch.amp.GradScaler):
    for x, y in loader:
        with torch.autocast("cuda"):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        opt.first_step(zero_grad=True)
        with torch.autocast("cuda"):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(opt.base_optimizer)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if torch.isfinite(norm):
            opt.second_step(zero_grad=True)
            scaler.update()  # expect: GL206
        else:
            opt.zero_grad()
""",
    "only at the end of a window": """
def fit(opt, n):
    for i, (x, y) in enumerate(loader):
        (F.cross_entropy(model(x), y) / n).backward()
        if (i + 1) % n == 0:
            opt.first_step(zero_grad=True)
            F.cross_entropy(model(x), y).backward()
            opt.second_step(zero_grad=True)
def undivided(opt, n):
    for i, (x, y) in enumerate(loader):
        F.cross_entropy(model(x), y).backward()  # expect: GL301
        if (i + 1) % n == 0:
            opt.first_step(zero_grad=True)
            F.cross_entropy(model(x), y).backward()
            opt.second_step(zero_grad=True)
""",
    "a class of the file, or another optimizer": """
class SAM(torch.optim.Optimizer):
    def __init__(self, params, base, **given):
        super().__init__(params, given)
        self.base = base(self.param_groups, **given)
    def first_step(self, zero_grad=False):
        for group in self.param_groups:
            for p in group["params"]:
                p.data.add_(p.grad)
        if zero_grad:
            self.zero_grad()
    def second_step(self, zero_grad=False):
        self.base.step()
        if zero_grad:
            self.zero_grad()
class Trainer:
    def __init__(self, sharp):
        if sharp:
            self.opt = SAM(model.parameters(), torch.optim.SGD, lr=0.1)
        else:
            self.opt = torch.optim.SGD(model.parameters(), lr=0.1)
    def fit(self):
        for x, y in loader:
            self.opt.zero_grad()
            F.cross_entropy(model(x), y).backward()
            if isinstance(self.opt, SAM):
                self.opt.first_step(zero_grad=True)
                F.cross_entropy(model(x), y).backward()
                self.opt.second_step(zero_grad=True)
            else:
                self.opt.step()
""",
}


@pytest.mark.parametrize("name", CASES)
def test_marked_lines_are_found_and_nothing_else(name, tmp_path):
    text = HEAD + CASES[name]
    found = {f for f in findings(text, tmp_path) if f[1] not in ("GL307", "GL308")}
    assert found == expected(text)
