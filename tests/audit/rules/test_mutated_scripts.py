"""Single mistakes where public scripts have something beside them: flags, windows of varying length, helpers."""

from __future__ import annotations

import pytest
from audited_snippets import assert_faults, expected, findings

CASES = {
    "zeroed before the step, at the end of a window whose length changes": """
def fit(warm):
    for epoch in range(3):
        for i, (x, y) in enumerate(loader):
            total = i + len(loader) * epoch
            if total <= warm:
                length = max(1, round(total / warm * 4))
            F.cross_entropy(model(x), y).backward()  # expect: GL301
            if total % length == 0:
                optimizer.zero_grad()  # expect: GL103
                optimizer.step()
""",
    "zeroed before the step, where a batch is rejected": """
def fit(bad):
    for x, y in loader:
        F.cross_entropy(model(x), y).backward()
        if bad(x):
            optimizer.zero_grad()
        optimizer.step()
        optimizer.zero_grad()
""",
    "zeroed before the step, where a batch is rejected by its norm": """
def fit(scaler, most):
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if norm > most:
            optimizer.zero_grad()
            scaler.step(optimizer)
            scaler.update()
            continue
        scaler.step(optimizer)
        scaler.update()
""",
    "a function of the standard library receives what holds a network": """
from dataclasses import asdict
class Settings:
    def __init__(self):
        self.model = model
settings = Settings()
for x, y in loader:
    F.cross_entropy(model(x), y).backward()
    optimizer.step()  # expect: GL305
    print(asdict(settings))
""",
    "a function of the standard library receives what may zero": """
import functools
def zero(_, net):
    net.zero_grad()
for x, y in loader:
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
    functools.reduce(zero, [model], None)
""",
    "the outputs of a network one by one": """
from torch.nn.parallel import DistributedDataParallel as DDP
net = DDP(model)
for x, y in loader:
    optimizer.zero_grad()
    total = torch.zeros(1)
    for i, part in enumerate(net.module(x)):  # expect: GL504
        total += F.mse_loss(part, y)
    total.backward()
    optimizer.step()
""",
    "divided twice, in a loop that a flag may end": """
def fit(steps, most, several, scaled):
    for i, (x, y) in enumerate(loader):
        loss = F.cross_entropy(model(x), y)
        if several:
            loss = loss.mean()
        if steps > 1:
            loss = loss / steps
            loss = loss / steps  # expect: GL302
        if scaled:
            (loss * 1.0).backward()
        else:
            loss.backward()
        if (i + 1) % steps == 0:
            optimizer.step()
            optimizer.zero_grad()
        if most > 0 and i > most:
            break
""",
    "a schedule of the project's, made of PyTorch's": """
from torch.optim.lr_scheduler import LambdaLR
class Warmup(LambdaLR):
    def __init__(self, opt, steps):
        super().__init__(opt, lambda step: min(1.0, step / steps))
def fit(n):
    schedule = Warmup(optimizer, 100)
    for i, (x, y) in enumerate(loader):
        F.cross_entropy(model(x), y).backward()  # expect: GL301
        if (i + 1) % n == 0:
            schedule.step()  # expect: GL402
            optimizer.step()
            optimizer.zero_grad()
""",
    "a schedule of the project's that steps as it likes": """
from torch.optim.lr_scheduler import LambdaLR
class Warmup(LambdaLR):
    def step(self):
        self.optimizer.param_groups[0]["lr"] = 0.1
schedule = Warmup(optimizer)
for x, y in loader:
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    schedule.step()
    optimizer.step()
""",
    "wrapped unless a flag says otherwise": """
from torch.nn.parallel import DistributedDataParallel as DDP
def fit(rank):
    net = model if rank == -1 else DDP(model)
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(net.module(x), y).backward()  # expect: GL504
        optimizer.step()
""",
    "autocast around one branch's forward pass": """
def fit(kind):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        if kind == "plain":
            with torch.autocast("cuda", dtype=torch.float16, enabled=False):
                loss = F.cross_entropy(model(x), y)  # expect: GL208
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
""",
    "fp16 without a scaler, where a flag chooses what is given to the network": """
def fit(net, long):
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            if long:
                out = net(x, y)
            else:
                out = net(x)
            loss = F.cross_entropy(out, y)
        loss.backward()  # expect: GL210
        optimizer.step()
""",
    "gradients switched on by a flag": """
def loss_of(net, x, y, training):
    with torch.set_grad_enabled(training):
        return F.cross_entropy(net(x), y)
scaler = torch.amp.GradScaler("cuda")
for x, y in loader:
    optimizer.zero_grad()
    loss = loss_of(model, x, y, True)  # expect: GL208
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
""".replace("net(x), y)\n", "net(x), y)  # expect: GL208\n").replace("True)  # expect: GL208", "True)"),
    "an evaluation, with a loader and a list of networks of the project's": """
from torch.utils.data import DataLoader
class Repeating(DataLoader):
    def __iter__(self):
        return super().__iter__()
class Several(nn.ModuleList):
    def forward(self, x):
        return [part(x) for part in self]
def evaluate(net, data):
    several = Several()
    several.append(net)
    with torch.no_grad():
        return sum(several(x)[0].mean() for x, _ in Repeating(data).__iter__())
for x, y in loader:
    F.cross_entropy(model(x), y).backward()
    optimizer.step()  # expect: GL305
    print(evaluate(model, loader))
""",
    "a function that adjusts the rate, and one that computes a norm": """
from elsewhere import total_norm
def fit(net, opt, options):
    for x, y in loader:
        options.warmup_adjust_learning_rate(opt)
        F.cross_entropy(net(x), y).backward()
        norm = total_norm(net.parameters())
        opt.step()  # expect: GL305
        print(norm)
""",
    "an optimizer or another, both made elsewhere": """
import elsewhere
def fit(net, opt):
    for x, y in loader:
        F.cross_entropy(net(x), y).backward()
        opt.zero_grad()  # expect: GL103
        opt.step()
def main(large):
    if large:
        chosen = elsewhere.large(8)
    else:
        chosen = elsewhere.small(8)
    fit(model, chosen)
""",
    "an object with several optimizers, and a tensor of its own that learns": """
class Agent:
    def __init__(self, actor):
        self.actor = actor
        self.log_alpha = torch.zeros(1)
        self.log_alpha.requires_grad = True
        self.one = torch.optim.Adam(self.actor.parameters())
        self.two = torch.optim.Adam([self.log_alpha])
    def update(self, x):
        self.actor(x).mean().backward()
        self.one.step()  # expect: GL305
        self.two.zero_grad()
        (self.log_alpha.exp() * x).mean().backward()
        self.two.step()
""",
}


@pytest.mark.parametrize("name", CASES)
def test_marked_lines_are_found_and_no_other_fault(name, tmp_path):
    assert_faults(CASES[name], tmp_path)


def test_folders_without_a_mark_are_packages(tmp_path):
    """`from nets.trainer import Trainer` in another folder of one repository, without __init__.py."""
    for name in ("nets", "work"):
        (tmp_path / name).mkdir()
    (tmp_path / "nets" / "trainer.py").write_text(
        "class Trainer:\n    def train_step(self, x):\n        return self.net(x)\n"
    )
    text = """
from nets.trainer import Trainer
class Own(Trainer):
    def fit(self, loader):
        for x in loader:
            self.train_step(x).mean().backward()
            self.optimizer.step()  # expect: GL305
"""
    assert findings(text, tmp_path / "work", "GL305") == expected(text)
