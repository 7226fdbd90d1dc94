"""Schedules: when they are stepped, and how long they are."""

from __future__ import annotations

import pytest
from audited_snippets import assert_marked

LIGHTNING = """
import lightning
from elsewhere import Warm
from transformers import get_linear_schedule_with_warmup
class Net(lightning.LightningModule):
    def training_step(self, batch, i):
        return F.cross_entropy(self.net(batch[0]), batch[1])
    def configure_optimizers(self):
        made = torch.optim.AdamW(self.parameters())
        schedule = {made}
        return {returned}
"""
NAMED = '{{"optimizer": made, "lr_scheduler": {}'
CYCLE = "torch.optim.lr_scheduler.OneCycleLR(made, 0.1, total_steps=self.trainer.estimated_stepping_batches)"
COSINE = "torch.optim.lr_scheduler.CosineAnnealingLR(made, T_max=self.trainer.max_epochs)"
LINEAR = "get_linear_schedule_with_warmup(made, 10, {})"
CASES = {
    "beside an engine that has a window of its own": """
import deepspeed
def settings(args):
    return {"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": args.n}
def train(args):
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10)
    engine, _, _, _ = deepspeed.initialize(model=model, optimizer=optimizer, config=settings(args))
    for x, y in loader:
        engine.backward(F.cross_entropy(engine(x), y))
        engine.step()
        schedule.step()  # expect: GL401
""",
    "given to an engine, as long as all micro-batches": """
import deepspeed
def train(args):
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=args.epochs * len(loader))  # expect: GL403
    config = {"gradient_accumulation_steps": 8}
    engine, _, _, _ = deepspeed.initialize(model=model, optimizer=optimizer, lr_scheduler=schedule, config=config)
    for epoch in range(args.epochs):
        for x, y in loader:
            engine.backward(F.cross_entropy(engine(x), y))
            engine.step()
""",
    "beside an engine whose configuration is changed": """
import deepspeed
import json
def train(args):
    config = json.load(open(args.config))
    config["gradient_accumulation_steps"] = args.n
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10)
    engine, _, _, _ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    for x, y in loader:
        engine.backward(F.cross_entropy(engine(x), y))
        engine.step()
        schedule.step()  # expect: GL401
""",
    "beside an engine without a window": """
import deepspeed
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10)
config = {"gradient_accumulation_steps": 1}
engine, _, _, _ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
for x, y in loader:
    engine.backward(F.cross_entropy(engine(x), y))
    engine.step()
    schedule.step()
""",
    "or an object in its place that does nothing": """
class Nothing:
    def step(self):
        pass
class Trainer:
    def __init__(self, optimizer, scheduler=None, n=4):
        self.optimizer, self.n = optimizer, n
        self.scheduler = Nothing() if scheduler is None else scheduler
    def fit(self):
        for i, (x, y) in enumerate(loader):
            (F.cross_entropy(model(x), y) / self.n).backward()  # gradlab: ignore[GL308]
            if (i + 1) % self.n == 0 or i + 1 == len(loader):
                self.optimizer.step()
                self.optimizer.zero_grad()
            self.scheduler.step()  # expect: GL401
    def fit_in_updates(self):
        for i, (x, y) in enumerate(loader):
            (F.cross_entropy(model(x), y) / self.n).backward()  # gradlab: ignore[GL308]
            if (i + 1) % self.n == 0 or i + 1 == len(loader):
                self.optimizer.step()
                self.optimizer.zero_grad()
                self.scheduler.step()
""",
    "as long as all updates, stepped in each epoch": """
from torch.optim.lr_scheduler import CosineAnnealingLR, OneCycleLR
epochs = 9
cycle = OneCycleLR(optimizer, 0.1, steps_per_epoch=len(loader), epochs=epochs)
cosine = CosineAnnealingLR(optimizer, T_max=epochs * len(loader))
short = CosineAnnealingLR(optimizer, T_max=epochs)
once = CosineAnnealingLR(optimizer, T_max=len(loader))
for epoch in range(epochs):
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    cycle.step()  # expect: GL409
    if epoch:
        cosine.step()  # expect: GL409
    short.step()
    once.step()  # expect: GL409
per_batch = CosineAnnealingLR(optimizer, T_max=len(loader))
for x, y in loader:
    for part in x.split(1):
        optimizer.zero_grad()
        model(part).square().mean().backward()
        optimizer.step()
    per_batch.step()
""",
    "as long as the epochs, counted from 1, stepped in each batch": """
epochs = 9
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs)  # expect: GL405
for epoch in range(1, epochs + 1):
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        schedule.step()
""",
    "counted again where a checkpoint is read": """
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10)
if resumed:
    schedule.last_epoch = 4
for epoch in range(9):
    schedule.step()  # expect: GL404
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
""",
    "optimizers and their schedules side by side": """
opts = [torch.optim.SGD(model[0].parameters(), lr=0.1), torch.optim.SGD(model[2].parameters(), lr=0.1)]
schedules = [torch.optim.lr_scheduler.StepLR(opt, 10) for opt in opts]
for x, y in loader:
    F.cross_entropy(model(x), y).backward()
    for opt, schedule in zip(opts, schedules):
        opt.step()
        schedule.step()
    model.zero_grad()
""",
    "once a micro-batch, where each update has a loop, is one mistake": """
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10)
batches = iter(loader)
for update in range(100):
    for _ in range(4):
        x, y = next(batches)
        (F.cross_entropy(model(x), y) / 4).backward()
        schedule.step()  # expect: GL401
    optimizer.step()
    optimizer.zero_grad()
""",
    "a schedule before the step, both under one condition": """
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10)
def run(settings):
    for i, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        testing = (i + 1) % settings["test_every"] == 0
        loss = F.cross_entropy(model(x), y)
        if testing == False:
            loss.backward()
            schedule.step()  # expect: GL402
            optimizer.step()
""",
    "a schedule at the head of the epoch, whose batches have loops of their own": """
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10)
for epoch in range(3):
    schedule.step()  # expect: GL404
    for x, y in loader:
        for part in range(len(x)):
            optimizer.zero_grad()
            F.cross_entropy(model(x[part]), y[part]).backward()
            optimizer.step()
""",
    "a schedule of each trial, brought to where it begins": """
for trial in range(3):
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10)
    schedule.step()
    for epoch in range(3):
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
""",
    "a schedule at the head of the epoch": """
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10)
for epoch in range(3):
    schedule.step()  # expect: GL404
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
""",
    "a schedule at the head of every epoch but the first, which is 1": """
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10)
for epoch in range(1, epochs + 1):
    if epoch != 1:
        schedule.step()
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
""",
    "the length of the data by another name": """
from contextlib import nullcontext
def run(net, batches, opt, n):
    net = nn.parallel.DistributedDataParallel(net)
    count = len(batches)
    for i, (x, y) in enumerate(batches):
        full = (i + 1) % n == 0
        with nullcontext() if full else net.no_sync():  # expect: GL506
            (F.cross_entropy(net(x), y) / n).backward()  # expect: GL308
        if full or i + 1 == count:
            opt.step()
            opt.zero_grad()
""",
    "a schedule's length by another name": """
batches = len(loader)
total = 10 * batches
updates = total // 4
long = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=total)  # expect: GL403
short = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=updates)
for i, (x, y) in enumerate(loader):
    (F.cross_entropy(model(x), y) / min(4, len(loader) - i // 4 * 4)).backward()
    if (i + 1) % 4 == 0 or i + 1 == len(loader):
        optimizer.step()
        optimizer.zero_grad()
        long.step()
        short.step()
""",
    "a schedule's length that may be given": """
def train(net, batches, opt, schedule, n):
    for i, (x, y) in enumerate(batches):
        (F.cross_entropy(net(x), y) / n).backward()
        if (i + 1) % n == 0:  # expect: GL307
            opt.step()
            schedule.step()
            opt.zero_grad()

def main(args, batches):
    count = len(batches)
    if args.steps is None:
        args.steps = int(args.epochs * count)
    train(model, batches, optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.steps), args.n)  # expect: GL403
""",
    "a schedule's length that is divided later, in a function, or by one that is not seen": """
def train(net, batches, opt, schedule, n):
    for i, (x, y) in enumerate(batches):
        (F.cross_entropy(net(x), y) / n).backward()
        if (i + 1) % n == 0:  # expect: GL307
            opt.step()  # expect: GL308
            schedule.step()
            opt.zero_grad()

def updates(batches, args):
    total = args.epochs * len(batches)
    return total // args.n
def main(args, batches, count):
    total = args.epochs * len(batches)
    if args.n > 1:
        total //= args.n
    train(model, batches, optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=total), args.n)
    total = updates(batches, args)
    train(model, batches, optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=total), args.n)
    args.total = count(len(batches), args)
    train(model, batches, optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.total), args.n)
""",
    "a schedule that counts micro-batches, stepped for each of them": """
def train(args, batches, total_micro_batches):
    args.steps = args.epochs * len(batches)
    schedules = [
        torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.steps),
        torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=total_micro_batches),
        torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.iterations),
    ]
    for i in range(args.iterations):
        x, y = next(batches)
        (F.cross_entropy(model(x), y) / args.n).backward()
        if (i + 1) % args.n == 0:
            optimizer.step()
            optimizer.zero_grad()
        for schedule in schedules:
            schedule.step()
""",
    "a schedule that counts updates, stepped for each micro-batch": """
def train(args, batches):
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.updates)
    for i in range(args.iterations):
        x, y = next(batches)
        (F.cross_entropy(model(x), y) / args.n).backward()
        if (i + 1) % args.n == 0:
            optimizer.step()
            optimizer.zero_grad()
        schedule.step()  # expect: GL401
""",
    "as long as the epochs, stepped for each batch": """
def train(args):
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.epochs)  # expect: GL405
    for epoch in range(args.start, args.epochs):
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            schedule.step()
""",
    "as long as the epochs, which are the loop itself, of several runs": """
def train(args):
    for run in range(args.runs):
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.epochs)
        for epoch in range(args.epochs):
            optimizer.zero_grad()
            F.cross_entropy(model(loader[0][0]), loader[0][1]).backward()
            optimizer.step()
            schedule.step()
""",
    "a schedule as long as the count of micro-batches": """
from elsewhere import make_scheduler
schedule = make_scheduler(optimizer, warmup, args.steps)  # expect: GL403
step = 0
while step < args.steps:
    for x, y in loader:
        (F.cross_entropy(model(x), y) / args.n).backward()
        if (step + 1) % args.n == 0:
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        step += 1
        if step >= args.steps:
            break
""",
    "a schedule as long as the count of updates, and one of unseen making": """
from elsewhere import make_scheduler
one = make_scheduler(optimizer, warmup, args.steps)
two = make_scheduler(optimizer, args)
step = 0
while step < args.steps:
    for i, (x, y) in enumerate(loader):
        (F.cross_entropy(model(x), y) / args.n).backward()
        if (i + 1) % args.n == 0:  # expect: GL307
            optimizer.step()
            one.step()
            two.step()
            optimizer.zero_grad()
            step += 1
        if step >= args.steps:
            break
""",
    "prepared, in Accelerate's own window, as long as all micro-batches": """
from accelerate import Accelerator
def train(args):
    accelerator = Accelerator(gradient_accumulation_steps=args.n)
    num_update_steps = {length}
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=args.epochs * num_update_steps)  # expect: GL403
    net, opt, batches, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    for x, y in batches:
        with accelerator.accumulate(net):
            accelerator.backward(F.cross_entropy(net(x), y))
            opt.step()
            schedule.step()
            opt.zero_grad()
""".replace("{length}", "len(loader)"),
    "prepared, in Accelerate's own window, as long as all updates": """
from accelerate import Accelerator
def train(args):
    accelerator = Accelerator(gradient_accumulation_steps=args.n)
    num_update_steps = len(loader) // args.n
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=args.epochs * num_update_steps)
    net, opt, batches, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    for x, y in batches:
        with accelerator.accumulate(net):
            accelerator.backward(F.cross_entropy(net(x), y))
            opt.step()
            schedule.step()
            opt.zero_grad()
""",
    **{
        f"of Lightning, {name}": LIGHTNING.format(made=made, returned=returned)
        for name, (made, returned) in {
            "in updates, in a list": (CYCLE, "[made], [schedule]  # expect: GL409"),
            "in updates, without its interval": (CYCLE, NAMED.format('{"scheduler": schedule}}  # expect: GL409')),
            "in updates, once an epoch": (
                CYCLE,
                NAMED.format('{"scheduler": schedule, "interval": "epoch"}}  # expect: GL409'),
            ),
            "in updates, once an update": (CYCLE, NAMED.format('{"scheduler": schedule, "interval": "step"}}')),
            "in updates of batches and epochs": (
                LINEAR.format("len(self.train_loader) * self.epochs"),
                "[made], [schedule]  # expect: GL409",
            ),
            "in epochs, once an epoch": (COSINE, "[made], [schedule]"),
            "in epochs, as a warm-up of epochs": (LINEAR.format("self.trainer.max_epochs"), "[made], [schedule]"),
            "of a class that is not seen": (
                "Warm(made, max_epochs=int(self.trainer.estimated_stepping_batches))",
                "[made], [schedule]  # expect: GL409",
            ),
            "stepped by the module itself": (
                CYCLE,
                "[made], [schedule]\n    def lr_scheduler_step(self, schedule, metric): schedule.step()",
            ),
        }.items()
    },
}


@pytest.mark.parametrize("name", CASES)
def test_marked_lines_are_found_and_nothing_else(name, tmp_path):
    assert_marked(CASES[name], tmp_path)
