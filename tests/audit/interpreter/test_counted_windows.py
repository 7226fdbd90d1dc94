"""Windows counted by a variable, optimizers that Accelerate holds back, and schedules of which one is chosen."""

from __future__ import annotations

import pytest
from audited_snippets import assert_marked

WRAPPED = """
from contextlib import nullcontext
from torch.nn.parallel import DistributedDataParallel
def fit(net, batches, n, plan):
    ddp = DistributedDataParallel(net)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    count = 0
    for x, y in batches:
"""
CASES = {
    "a counter in a dictionary, counted at the end": WRAPPED
    + """
        last = (plan["step"] + 1) % n == 0
        with ddp.no_sync() if plan["step"] % n else nullcontext():  # expect: GL502
            (F.cross_entropy(ddp(x), y) / n).backward()
        if last:
            opt.step()
            opt.zero_grad()
        plan["step"] += 1
""",
    "a counter in a dictionary, counted at the end, asked for rightly": WRAPPED
    + """
        last = (plan["step"] + 1) % n == 0
        with nullcontext() if last else ddp.no_sync():
            (F.cross_entropy(ddp(x), y) / n).backward()
        if last:
            opt.step()
            opt.zero_grad()
        plan["step"] += 1
""",
    "a counter of an object, which one method resumes and another counts up": """
class Trainer:
    def __init__(self, net, opt, n):
        self.net, self.opt, self.n, self.step = net, opt, n, 0
    def resume(self, path):
        self.step = torch.load(path)["step"]
    def fit(self, batches):
        for x, y in batches:
            F.cross_entropy(self.net(x), y).backward()  # expect: GL301
            self.step += 1
            if self.step % self.n == 0:
                self.opt.step()
                self.opt.zero_grad()
""",
    "a counter in a dictionary": """
def fit(net, opt, batches, n):
    state = {"step": 0}
    for x, y in batches:
        F.cross_entropy(net(x), y).backward()  # expect: GL301
        state["step"] += 1
        if state["step"] % n == 0:
            opt.step()
            opt.zero_grad()
""",
    "a counter in a dictionary, of divided losses": """
def fit(net, opt, batches, n):
    state = {"step": 0}
    for x, y in batches:
        (F.cross_entropy(net(x), y) / n).backward()
        state["step"] += 1
        if state["step"] % n == 0:
            opt.step()
            opt.zero_grad()
""",
    "a counter in a dictionary that counts updates": """
def fit(net, opt, batches, every):
    state = {"step": 0}
    for x, y in batches:
        opt.zero_grad()
        F.cross_entropy(net(x), y).backward()
        opt.step()
        state["step"] += 1
        if state["step"] % every == 0:
            print(state["step"])
            state["step"] = 0
""",
    "the last of a window, before it is counted and after": WRAPPED
    + """
        last = count + 1 >= n
        with nullcontext() if last else ddp.no_sync():
            (F.cross_entropy(ddp(x), y) / n).backward()
        count += 1
        if count < n:
            continue
        opt.step()
        opt.zero_grad()
        count = 0
""",
    "all but the last of a window": WRAPPED
    + """
        last = count + 1 >= n
        with ddp.no_sync() if last else nullcontext():  # expect: GL502
            (F.cross_entropy(ddp(x), y) / n).backward()
        count += 1
        if count < n:
            continue
        opt.step()
        opt.zero_grad()
        count = 0
""",
    "ended by an unknown condition": WRAPPED
    + """
        count += 1
        last = plan.last(count)
        if not last:
            with ddp.no_sync():
                (F.cross_entropy(ddp(x), y) / n).backward()
        else:
            (F.cross_entropy(ddp(x), y) / n).backward()
        if count % n == 0:
            opt.step()
            opt.zero_grad()
""",
    "set to zero through Accelerate, outside of its window": """
from accelerate import Accelerator
from transformers import get_linear_schedule_with_warmup
accelerator = Accelerator(gradient_accumulation_steps=4)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for x, y in loader:
    optimizer.zero_grad()
    with accelerator.accumulate(model):
        accelerator.backward(F.cross_entropy(model(x), y))
        optimizer.step()
""",
    "set to zero past Accelerate, in its window": """
from accelerate import Accelerator
from transformers import get_linear_schedule_with_warmup
accelerator = Accelerator(gradient_accumulation_steps=4)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for x, y in loader:
    model.zero_grad()  # expect: GL306
    with accelerator.accumulate(model):
        accelerator.backward(F.cross_entropy(model(x), y))
        optimizer.step()
""",
    "a schedule in micro-batches, or another one": """
def made(opt, kind):
    if kind == "cycle":
        return torch.optim.lr_scheduler.OneCycleLR(opt, 0.1, epochs=3, steps_per_epoch=len(loader))
    return torch.optim.lr_scheduler.StepLR(opt, 10)
schedule = made(optimizer, input())
for i, (x, y) in enumerate(loader):
    (F.cross_entropy(model(x), y) / 4).backward()
    if (i + 1) % 4 == 0:  # expect: GL307
        optimizer.step()
        optimizer.zero_grad()
    schedule.step()
""",
    "a length in micro-batches, of which the warm-up is a part": """
from transformers import get_cosine_schedule_with_warmup
settings = Settings(accumulate=4, path="a/b")
total = len(loader) * settings.epochs
schedule = get_cosine_schedule_with_warmup(  # expect: GL403
    optimizer, num_warmup_steps=total // 20, num_training_steps=total
)
for i, (x, y) in enumerate(loader):
    (F.cross_entropy(model(x), y) / 4).backward()
    if (i + 1) % 4 == 0:  # expect: GL307
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
""",
    "a window whose length depends on the devices, and a schedule in it": """
def fit(net, opt, schedule: torch.optim.lr_scheduler.LRScheduler, settings, devices):
    count = 0
    for x, y in loader:
        count += 1
        adding = count % settings.micro_batches(devices) != 0
        (F.cross_entropy(net(x), y) / settings.micro_batches(devices)).backward()
        if not adding:
            opt.step()
            opt.zero_grad()
            schedule.step()
""",
    "a window whose length depends on the devices, and a schedule outside": """
def fit(net, opt, schedule: torch.optim.lr_scheduler.LRScheduler, settings, devices):
    count = 0
    for x, y in loader:
        count += 1
        adding = count % settings.micro_batches(devices) != 0
        (F.cross_entropy(net(x), y) / settings.micro_batches(devices)).backward()
        if not adding:
            opt.step()
            opt.zero_grad()
        schedule.step()  # expect: GL401
""",
    "a schedule that Accelerate steps in a window counted by hand, in updates": """
from accelerate import Accelerator
from transformers import get_linear_schedule_with_warmup
accelerator = Accelerator()
schedule = get_linear_schedule_with_warmup(optimizer, 100, 3 * len(loader) // 4)
model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
for i, (x, y) in enumerate(loader):
    accelerator.backward(F.cross_entropy(model(x), y) / 4)
    if i % 4 == 0:  # expect: GL307
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
""",
    "a schedule that Accelerate steps in a window counted by hand, in micro-batches": """
from accelerate import Accelerator
from transformers import get_linear_schedule_with_warmup
accelerator = Accelerator()
schedule = get_linear_schedule_with_warmup(optimizer, 100, 3 * len(loader))  # expect: GL403
model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
for i, (x, y) in enumerate(loader):
    accelerator.backward(F.cross_entropy(model(x), y) / 4)
    if i % 4 == 0:  # expect: GL307
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
""",
}


@pytest.mark.parametrize("name", CASES)
def test_counted_windows(name, tmp_path):
    assert_marked(CASES[name], tmp_path)
