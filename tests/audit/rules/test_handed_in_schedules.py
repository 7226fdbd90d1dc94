"""Schedules that come from a caller, and lengths that a schedule's function refers to."""

from __future__ import annotations

import pytest
from audited_snippets import assert_faults

LOOP = """
def train(net, batches, opt, {name}):
    net.train()
    for x, y in batches:
        opt.zero_grad()
        F.cross_entropy(net(x), y).backward()
        {first}
        {second}
"""
CASES = {
    "a parameter, before the step": LOOP.format(
        name="scheduler", first="scheduler.step()  # expect: GL402", second="opt.step()"
    ),
    "a parameter, after the step": LOOP.format(name="scheduler", first="opt.step()", second="scheduler.step()"),
    "a schedule of something else": LOOP.format(
        name="teacher_scheduler", first="teacher_scheduler.step()", second="opt.step()"
    ),
    "a parameter, where the file takes a schedule of the project's": "from warmup import NoamSchedule\n"
    + LOOP.format(name="scheduler", first="scheduler.step()", second="opt.step()"),
    "a parameter, where the file has a class that sets the rate of the coming update": """
from torch.optim import lr_scheduler
class Ramp:
    def __init__(self, opt):
        self.opt, self.count = opt, 0
    def step(self):
        self.count += 1
        for group in self.opt.param_groups:
            group["lr"] = 0.1 * min(1, self.count / 10)
"""
    + LOOP.format(name="scheduler", first="scheduler.step()", second="opt.step()"),
    "a parameter, where such a class is PyTorch's": """
from torch.optim.lr_scheduler import StepLR
class Ramp(StepLR):
    def reset(self):
        self.optimizer.param_groups[0]["lr"] = 0.1
"""
    + LOOP.format(name="scheduler", first="scheduler.step()  # expect: GL402", second="opt.step()"),
    "one of several results of a function of elsewhere": """
from elsewhere import build_all
net, opt, scheduler = build_all(8)
for x, y in loader:
    opt.zero_grad()
    F.cross_entropy(net(x), y).backward()
    scheduler.step()  # expect: GL402
    opt.step()
""",
    "the result of what makes schedules": """
from elsewhere import build_scheduler
scheduler = build_scheduler(optimizer)
for x, y in loader:
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    scheduler.step()
    optimizer.step()
""",
    "at the head of each epoch": """
def fit(net, batches, opt, scheduler, epochs):
    for epoch in range(epochs):
        scheduler.step()  # expect: GL404
        for x, y in batches:
            opt.zero_grad()
            F.cross_entropy(net(x), y).backward()
            opt.step()
""",
    "at the head of each epoch, of a warm-up that is not PyTorch's": """
from torch.optim.lr_scheduler import StepLR
from warmup_scheduler import GradualWarmupScheduler
schedule = GradualWarmupScheduler(optimizer, multiplier=1, total_epoch=10, after_scheduler=StepLR(optimizer, 10))
for epoch in range(9):
    schedule.step()
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
""",
    "at the head of a function that goes over the batches once": """
def train_epoch(net, batches):
    net.scheduler.step()  # expect: GL404
    for x, y in batches:
        net.optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        net.optimizer.step()
""",
    "in a step of Lightning's own optimization": """
from lightning import LightningModule
class Module(LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(8, 4)
    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters())
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 10)]
    def training_step(self, batch, batch_idx):
        scheduler = self.lr_schedulers()
        scheduler.step()  # expect: GL402
        x, y = batch
        return F.cross_entropy(self.net(x), y)
""",
    "a function of the length, in micro-batches": """
def cosine(opt, total_steps):
    def rate(step):
        return 1 - step / total_steps
    return torch.optim.lr_scheduler.LambdaLR(opt, rate)
schedule = cosine(optimizer, 3 * len(loader))  # expect: GL403
for epoch in range(3):
    for i, (x, y) in enumerate(loader):
        (F.cross_entropy(model(x), y) / 4).backward()
        if (i + 1) % 4 == 0:
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
""",
    "as long as one epoch, and stepped in each iteration of all": """
from transformers import get_cosine_schedule_with_warmup
per_epoch = len(loader)
schedule = get_cosine_schedule_with_warmup(optimizer, num_warmup_steps=2, num_training_steps=per_epoch)  # expect: GL405
whole = get_cosine_schedule_with_warmup(optimizer, num_warmup_steps=2, num_training_steps=per_epoch * epochs)
cycle = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=per_epoch)
for epoch in range(epochs):
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        schedule.step()
        whole.step()
        cycle.step()
""",
    "as long as the epochs, and given to an engine, which steps it": """
import deepspeed
def train(args):
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.epochs)  # expect: GL405
    engine, _, _, _ = deepspeed.initialize(model=model, optimizer=optimizer, lr_scheduler=schedule)
    for epoch in range(args.epochs):
        for x, y in loader:
            engine.backward(F.cross_entropy(engine(x), y))
            engine.step()
""",
    "as long as an epoch, anew in each": """
from transformers import get_cosine_schedule_with_warmup
for epoch in range(epochs):
    schedule = get_cosine_schedule_with_warmup(optimizer, num_warmup_steps=2, num_training_steps=len(loader))
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        schedule.step()
""",
    "at the start of a function that some epochs call": """
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: 1 / (s + 1))
def plain(net, opt):
    schedule.step()  # expect: GL404
    for x, y in loader:
        opt.zero_grad()
        F.cross_entropy(net(x), y).backward()
        opt.step()
def other(net, opt):
    for x, y in loader:
        opt.zero_grad()
        F.mse_loss(net(x), y).backward()
        opt.step()
    schedule.step()
for epoch in range(9):
    if epoch < 5:
        plain(model, optimizer)
    else:
        other(model, optimizer)
""",
}


@pytest.mark.parametrize("name", CASES)
def test_schedules_of_unseen_making(name, tmp_path):
    assert_faults(CASES[name], tmp_path)
