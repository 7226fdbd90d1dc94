"""Schedules whose length counts epochs or micro-batches, whatever it is computed from, while they count updates."""

from __future__ import annotations

import pytest
from audited_snippets import assert_faults

HEAD = """
from tqdm import trange
from transformers import get_linear_schedule_with_warmup
from optimization import WarmupLinearSchedule
from torch.optim.lr_scheduler import CosineAnnealingLR, PolynomialLR
def train(args, samples):
    {made}
"""
WINDOWS = """
    for epoch in range(args.epochs):
        for i, (x, y) in enumerate(loader):
            (F.cross_entropy(model(x), y) / min(args.n, len(loader) - i // args.n * args.n)).backward()
            if (i + 1) % args.n == 0 or i + 1 == len(loader):
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
"""
EPOCHS = """
    for {over}:
        for i, (x, y) in enumerate(loader):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            schedule.step()
"""
ANEW = "if args.max_steps:\n        args.epochs = args.max_steps // 9 + 1\n    "
SAMPLES = (
    "steps = int(len(samples) / {size} * args.num_train_epochs)\n    schedule = get_linear_schedule_with_warmup({rest}"
)
LINEAR = "optimizer, num_warmup_steps=9, num_training_steps=steps)"
PART = "args.batch_size = args.batch_size // args.n\n    "
OPAQUE = "steps = len(loader){per} * args.epochs\n    schedule = WarmupLinearSchedule(optimizer, t_total=steps)"
EACH = "each = len(samples) // args.bs{per}\n    schedule = CosineAnnealingLR(optimizer, T_max=each * args.epochs)"
WHOLE = "{window} = args.batch_size // {by}\n    " + SAMPLES.format(size="args.batch_size", rest=LINEAR)
UPDATES = {
    "samples by the size of a batch": SAMPLES.format(size="args.batch_size", rest=LINEAR + "  # expect: GL403"),
    "samples by the size of a part of a batch": PART
    + SAMPLES.format(size="args.batch_size", rest=LINEAR + "  # expect: GL403"),
    "samples by the size of a part of a batch and by the window": PART
    + SAMPLES.format(size="args.batch_size / args.n", rest=LINEAR),
    "samples by the window too": SAMPLES.format(size="args.batch_size / args.n", rest=LINEAR),
    "samples by the window too, by another name": "n = args.n\n    "
    + SAMPLES.format(size="args.batch_size / n", rest=LINEAR),
    "samples by the size of all": SAMPLES.format(size="args.global_batch_size", rest=LINEAR),
    "samples by the size of a window": "size = args.batch_size * args.n\n    "
    + SAMPLES.format(size="size", rest=LINEAR),
    "a window of a batch by the size of its parts": WHOLE.format(window="args.n", by="args.device_batch"),
    "a window of a batch by the number of its samples": WHOLE.format(window="accum_steps", by="8")
    + "\n    args.n = accum_steps",
    "samples by the size of a batch, and another part": WHOLE.format(window="shown", by="8") + "  # expect: GL403",
    "batches of an epoch by another name": EACH.format(per="") + "  # expect: GL403",
    "updates of an epoch by another name": EACH.format(per=" // args.n"),
    "a schedule of unseen making": OPAQUE.format(per="") + "  # expect: GL403",
    "a schedule of unseen making, in updates": OPAQUE.format(per=" // args.n"),
}
CASES = {name: HEAD.format(made=made) + WINDOWS for name, made in UPDATES.items()}
COUNTS = {
    "by another name": ("total = args.epochs\n    schedule = get_linear_schedule_with_warmup(optimizer, 0, total)", "_ in range(total)"),
    "as an integer": ("schedule = PolynomialLR(optimizer, int(args.num_train_epochs))", "_ in trange(int(args.num_train_epochs))"),
    "to a number that is computed": (ANEW + "schedule = CosineAnnealingLR(optimizer, args.epochs)", "_ in range(args.epochs)"),
    "times the micro-batches of a window": ("schedule = get_linear_schedule_with_warmup(optimizer, 9, args.epochs * args.accumulation)", "epoch in range(args.epochs)"),
    "by the name of what is counted": ("schedule = CosineAnnealingLR(optimizer, args.epochs)", "epoch in range(args.start, args.end)"),
}  # fmt: skip
for name, (made, over) in COUNTS.items():
    loop = EPOCHS.format(over=over)
    CASES[f"epochs {name}"] = HEAD.format(made=made + "  # expect: GL405") + loop
    CASES[f"epochs {name}, after each"] = HEAD.format(made=made) + loop.replace(
        "    schedule.step()", "schedule.step()"
    )
COSINE = HEAD.format(made="n, schedule = len(loader), CosineAnnealingLR(optimizer, args.epochs)  # expect: GL405")
CASES |= {
    "epochs, once a window": COSINE + WINDOWS,
    "epochs, once a window that is an epoch": HEAD.format(made="n = len(loader)\n    schedule = CosineAnnealingLR(optimizer, args.epochs)")
    + WINDOWS.replace("args.n", "n"),
    "epochs times the windows of each": HEAD.format(made="schedule = get_linear_schedule_with_warmup(optimizer, 9, int(len(loader) / args.accumulation) * args.epochs)")
    + EPOCHS.format(over="epoch in range(args.epochs)"),
    "epochs times the updates of each": HEAD.format(made="schedule = get_linear_schedule_with_warmup(optimizer, 9, args.epochs * args.updates)")
    + EPOCHS.format(over="epoch in range(args.epochs)"),
    "a warm-up of epochs": HEAD.format(made="schedule = get_linear_schedule_with_warmup(optimizer, args.warmup_epochs, args.updates)")
    + EPOCHS.format(over="epoch in range(args.epochs)"),
}  # fmt: skip
CASES |= {
    "all updates, once an epoch, prepared": """
from accelerate import Accelerator
from torch.optim.lr_scheduler import OneCycleLR
accelerator = Accelerator()
cycle = OneCycleLR(optimizer, 0.1, epochs=args.epochs, steps_per_epoch=args.updates)
net, opt, data, schedule = accelerator.prepare(model, optimizer, loader, cycle)
for epoch in range(args.epochs):
    for x, y in data:
        opt.zero_grad()
        accelerator.backward(F.cross_entropy(net(x), y))
        opt.step()
    schedule.step()  # expect: GL409
""",
    "all updates, once an update, prepared": """
from accelerate import Accelerator
from torch.optim.lr_scheduler import OneCycleLR
accelerator = Accelerator()
cycle = OneCycleLR(optimizer, 0.1, epochs=args.epochs, steps_per_epoch=args.updates)
net, opt, data, schedule = accelerator.prepare(model, optimizer, loader, cycle)
for epoch in range(args.epochs):
    for x, y in data:
        opt.zero_grad()
        accelerator.backward(F.cross_entropy(net(x), y))
        opt.step()
        schedule.step()
""",
}
COUNTED = """
from torch.optim.lr_scheduler import CosineAnnealingLR, StepLR
def train(args):
    if args.policy == "cosine":
        schedule = CosineAnnealingLR(optimizer, args.total + 10)
    else:
        schedule = StepLR(optimizer, 10)
    done = 0
    while done < args.total:
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step(){each}
            done += 1
            if done >= args.total:
                return
        {after}
"""
STEP_IF = "if args.policy {} 'cosine':\n            schedule.step()"
CASES |= {
    "as long as what ends the training, once an epoch": COUNTED.format(
        each="", after="schedule.step()  # expect: GL409"
    ),
    "as long as what ends the training, once an update": COUNTED.format(
        each="\n            schedule.step()", after="print(done)"
    ),
    "as long as what ends the training, of another policy": COUNTED.format(each="", after=STEP_IF.format("!=")),
    "as long as what ends the training, of this policy": COUNTED.format(
        each="", after=STEP_IF.format("==") + "  # expect: GL409"
    ),
}
PASSED = """
from transformers import get_linear_schedule_with_warmup
def pass_over(loader):
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step(){each}
def train(samples, config):
    steps = int(len(samples){per} * config.EPOCHS)
    schedule = get_linear_schedule_with_warmup(optimizer, num_warmup_steps=0, num_training_steps=steps)
    for epoch in range(config.EPOCHS):
        pass_over(loader)
        {after}
"""
SIZE = " / config.BATCH_SIZE"
CASES |= {
    "samples by the size of a batch, once an epoch": PASSED.format(
        each="", per=SIZE, after="schedule.step()  # expect: GL409"
    ),
    "samples by the size of a batch, once an update": PASSED.replace("over(loader", "over(loader, schedule").format(
        each="\n        schedule.step()", per=SIZE, after="print(epoch)"
    ),
    "as many steps as epochs, once an epoch": PASSED.replace("int(len(samples){per} * config.EPOCHS)", "config.EPOCHS").format(
        each="", after="schedule.step()"
    ),
}  # fmt: skip
SKIPPED = """
from accelerate import Accelerator
from transformers import get_scheduler
def train(args):
    accelerator = Accelerator(gradient_accumulation_steps=args.accum)
    schedule = get_scheduler("cosine", optimizer, num_training_steps={length})
    net, opt, data, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    for epoch in range(args.epochs):
        for i, (x, y) in enumerate(data):
            if args.resume and epoch == args.first and i < args.skip:
                continue
            with accelerator.accumulate(net):
                accelerator.backward(F.cross_entropy(net(x), y))
                opt.step()
                schedule.step()
                opt.zero_grad()
"""
CASES |= {
    "epochs, in each batch that is not skipped": SKIPPED.format(length="args.epochs").replace(
        "epochs)\n    net", "epochs)  # expect: GL405\n    net"
    ),
    "updates, in each batch that is not skipped": SKIPPED.format(length="len(loader) // args.accum * args.epochs"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_length_counts_other_things_than_updates(name, tmp_path):
    assert_faults(CASES[name], tmp_path)
