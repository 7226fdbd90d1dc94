"""What the audit understands of a text, a few lines each: `# expect:` marks what is said, and nothing else is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from marked import HEAD, STEP, expected, said

from gradlab.audit.cli import main

CASES = {
    "a sum of a batch's own losses is no kept loss": """
for x, y in loader:
    loss = 0
    for part in x:
        loss += F.mse_loss(model(part), y)
    optimizer.zero_grad()
    torch.amp.GradScaler("cpu", enabled=False).scale(loss).backward()
    optimizer.step()
""",
    "losses appended and then added up are no kept losses": """
for x, y in loader:
    parts = []
    for part in x:
        parts.append(F.mse_loss(model(part), y))
    loss = sum(parts)
    loss = loss + 0.1 * parts[0]
"""
    + STEP,
    "kept in an attribute": """
class Learner:
    def __init__(self):
        self.model = nn.Linear(8, 4)
        self.opt = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.total = 0
    def update(self, x, y):
        loss = F.cross_entropy(self.model(x), y)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        self.total += loss  # expect: GL605
    def fit(self, loader):
        for x, y in loader:
            self.update(x, y)
""",
    "total = total + loss keeps as += does": """
total = 0.0
for x, y in loader:
    loss = F.cross_entropy(model(x), y)
    total = total + loss  # expect: GL605
"""
    + STEP,
    "a loss that only backward() shows to be a tensor": """
def run(process, net, opt, batches):
    total = 0.0
    for batch in batches:
        opt.zero_grad()
        terms = process.terms(net, batch)
        loss = terms["loss"].mean()
        total += loss  # expect: GL605
        loss.backward()
        opt.step()
""",
    "what a criterion gives beside the loss may be a number": """
def run(net, criterion, opt, batches):
    log = []
    for x, y in batches:
        opt.zero_grad()
        loss, parts = criterion(net(x), y)
        loss.backward()
        opt.step()
        log.append(parts["total"])
""",
    "divided once, when the window is complete": """
n = 4
batches = iter(loader)
for _ in range(2):
    for _ in range(n):
        x, y = next(batches)
        F.cross_entropy(model(x), y).backward()
    for p in model.parameters():
        p.grad /= n
    optimizer.step()
    optimizer.zero_grad()
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
    "set to zero at the first micro-batch of a window": """
n = 4
batches = iter(loader)
for _ in range(2):
    for i in range(n):
        if i == 0:
            optimizer.zero_grad()
        x, y = next(batches)
        (F.cross_entropy(model(x), y) / n).backward()
    optimizer.step()
""",
    "a bad batch thrown away": """
n = 4
for i, (x, y) in enumerate(loader):
    (F.cross_entropy(model(x), y) / n).backward()
    if (i + 1) % n == 0:
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if not torch.isfinite(norm):
            optimizer.zero_grad()
            continue
        optimizer.step()  # expect: GL307
        optimizer.zero_grad()
""",
    "no_sync kept in a name and called later": """
from contextlib import nullcontext
from torch.nn.parallel import DistributedDataParallel
n = 4
wrapped = DistributedDataParallel(model)
for i, (x, y) in enumerate(loader):
    quiet = wrapped.no_sync if i % n != 0 else nullcontext
    with quiet():  # expect: GL502
        (F.cross_entropy(wrapped(x), y) / n).backward()
    if (i + 1) % n == 0:
        optimizer.step()  # expect: GL307
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
    "one of several settings is compared with each": """
class Mode:
    HALF, BRAIN = 1, 2
def step(task, scaler, x, y):
    loss = F.cross_entropy(task.net(x), y)
    task.optimizer.zero_grad()
    if task.mode == Mode.BRAIN:
        loss.backward()
    elif task.mode == Mode.HALF:
        scaler.scale(loss).backward()
    else:
        loss.backward()
    if task.mode == Mode.HALF:
        scaler.step(task.optimizer)
        scaler.update()
    else:
        task.optimizer.step()
""",
    "no_sync around the backward pass of a loss that cannot be followed": """
from contextlib import nullcontext
from torch.nn.parallel import DistributedDataParallel
from elsewhere import normalized, several
wrapped = DistributedDataParallel(model)
for x, y in loader:
    optimizer.zero_grad()
    loss = normalized(wrapped(x), y)
    with wrapped.no_sync() if several() else nullcontext():  # expect: GL503
        loss.backward()
    optimizer.step()
""",
    "the wrapper, or the model where there is one process": """
from torch.nn.parallel import DistributedDataParallel
class Several(nn.Module):
    def __init__(self, one, several):
        super().__init__()
        self.one, self.several = one, several
        if several:
            self.wrapped = DistributedDataParallel(one)
    def run(self, opt, batches):
        net = self.one if not self.several else self.wrapped
        for x, y in batches:
            opt.zero_grad()
            F.cross_entropy(net(x), y).backward()
            opt.step()
""",
    "a target's logarithm is no prediction's": """
def poisson_loss(prediction, target):
    stirling = target * torch.log(target) - target
    return (prediction.exp() - target * prediction + stirling).mean()  # expect: GL604
def plain_loss(prediction, target):
    return -(target * torch.log(prediction)).mean()  # expect: GL601
""",
    "no_sync under a setting": """
from contextlib import nullcontext
from torch.nn.parallel import DistributedDataParallel
wrapped = DistributedDataParallel(model)
def run(distributed, n):
    for i, (x, y) in enumerate(loader):
        quiet = nullcontext()
        if distributed:
            quiet = wrapped.no_sync() if i % n != 0 else nullcontext()
        with quiet:  # expect: GL502
            (F.cross_entropy(wrapped(x), y) / n).backward()
        if (i + 1) % n == 0:
            optimizer.step()  # expect: GL307
            optimizer.zero_grad()
""",
    "no_sync around the backward pass of a loss put together": """
from torch.nn.parallel import DistributedDataParallel
def run(net, parts, opt, n):
    wrapped = DistributedDataParallel(net)
    for i, (x, y) in enumerate(loader):
        out = wrapped(x)
        terms = {}
        for name in parts:
            terms[name] = parts[name](out, y)
        loss = sum(terms.values()) / n
        if (i + 1) % n == 0:
            loss.backward()
            opt.step()  # expect: GL307
            opt.zero_grad()
        else:
            with wrapped.no_sync():  # expect: GL503
                loss.backward()
""",
    "the gradients are zero when the next iteration steps": """
for x, y in loader:
    optimizer.step()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.zero_grad()  # expect: GL103
""",
    "the model taken out of Accelerate's wrapper": """
from accelerate import Accelerator
accelerator = Accelerator()
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for x, y in loader:
    optimizer.zero_grad()
    loss = F.cross_entropy(accelerator.unwrap_model(model)(x), y)  # expect: GL504
    accelerator.backward(loss)
    optimizer.step()
""",
    "a scaler that is called": """
def epoch(net, opt, scaler, n):
    opt.zero_grad()
    for i, (x, _) in enumerate(loader):
        loss, _, _ = net(x)
        scaler(loss, opt, parameters=net.parameters(), update_grad=(i + 1) % n == 0)  # expect: GL301, GL307
        if (i + 1) % n == 0:
            opt.zero_grad()
""",
    "an optimizer of several, made of what a model gives": """
class Several:
    def __init__(self, dense=None, sparse=None):
        self.dense = [] if dense is None else dense
        self.sparse = [] if sparse is None else sparse
    def zero_grad(self):
        for opt in self.dense + self.sparse:
            opt.zero_grad()
    def step(self):
        for opt in self.dense + self.sparse:
            if lazy(opt):
                opt.step(opt.rate)
            else:
                opt.step()
class Trainer:
    def __init__(self, net):
        self.net = net
        made = net.made_optimizer()
        if not isinstance(made, Several):
            made = Several([made])
        self.several = made
    @property
    def optimizer(self):
        return self.several
    def fit(self, batches, bound=None):
        for x, y in batches:
            self.optimizer.zero_grad()
            F.cross_entropy(self.net(x), y).backward()
            self.optimizer.step()
            if bound is not None:
                nn.utils.clip_grad_norm_(self.net.parameters(), bound)  # expect: GL101
""",
    "a step in either branch, and clipping under another flag": """
def fit(net, opt, batches, fast, bound):
    for x, y in batches:
        opt.zero_grad()
        F.cross_entropy(net(x), y).backward()
        if fast:
            opt.step()
        else:
            print("slow")
            opt.step()
        if bound:
            nn.utils.clip_grad_norm_(net.parameters(), bound)  # expect: GL101
""",
    "the length of the window is in the learning rate": """
n = 4
lr = 0.1 / n
sgd = torch.optim.SGD(model.parameters(), lr=lr)
for i, (x, y) in enumerate(loader):
    F.cross_entropy(model(x), y).backward()
    if (i + 1) % n == 0 or i + 1 == len(loader):
        sgd.step()
        sgd.zero_grad()
""",
    "clipping in Lightning's training_step": """
import lightning
class Net(lightning.LightningModule):
    def training_step(self, batch, i):
        loss = F.cross_entropy(self(batch[0]), batch[1])
        nn.utils.clip_grad_norm_(self.parameters(), 1.0)  # expect: GL102
        return loss
class Manual(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
    def training_step(self, batch, i):
        opt = self.optimizers()
        opt.zero_grad()
        self.manual_backward(F.cross_entropy(self(batch[0]), batch[1]))
        nn.utils.clip_grad_norm_(self.parameters(), 1.0)
        opt.step()
""",
    "log of a softmax in the loop": """
for x, y in loader:
    shares = F.softmax(model(x), dim=1)
    loss = -torch.log(shares[range(len(y)), y]).mean()  # expect: GL601
"""
    + STEP,
    "log of a share that a clamp or an eps keeps from zero": """
for x, y in loader:
    shares = model(x).softmax(1)
    loss = -torch.log(shares.clamp_min(1e-8)).mean() - (shares + 1e-8).log().mean() - F.log_softmax(model(x), 1).mean()
"""
    + STEP,
    "log of what a network with a sigmoid at its end gives": """
judge = nn.Sequential(nn.Linear(8, 1), nn.Sigmoid())
opt = torch.optim.SGD(judge.parameters(), lr=0.1)
for real, fake in loader:
    loss = -(
        torch.log(judge(real))  # expect: GL601
        + torch.log(1 - judge(fake))  # expect: GL601
    ).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
""",
    "log of what a class's forward pass makes a share": """
class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 4)
    def forward(self, x):
        out = F.softmax(self.head(x), dim=-1)
        return out
policy = Policy()
opt = torch.optim.SGD(policy.parameters(), lr=0.1)
for x, y in loader:
    chosen = policy(x).gather(1, y[:, None])
    loss = -torch.log(chosen).mean()  # expect: GL601
    opt.zero_grad()
    loss.backward()
    opt.step()
""",
    "a log that no loss is made of": """
for x, y in loader:
    out = model(x)
    shown = torch.log(torch.softmax(out, 1)).mean().item()
    loss = F.cross_entropy(out, y)
"""
    + STEP,
    "division by an output, in the loop and in a helper": """
def relative(out, y):
    return ((y - out) / out).abs().mean()  # expect: GL602
for x, y in loader:
    out = model(x)
    loss = relative(out, y) + (1.0 / out).mean()  # expect: GL602
"""
    + STEP,
    "division by what is kept from zero": """
for x, y in loader:
    out = model(x)
    loss = (y / (out.abs() + 1e-6)).mean() + (y / F.softplus(out)).mean() + (out / out.norm()).mean()
"""
    + STEP,
    "sqrt of squares, each by itself": """
for x, y in loader:
    loss = torch.sqrt(((model(x) - y) ** 2).sum(dim=1)).mean()  # expect: GL603
    loss = loss + ((model(x) - y).pow(2) ** 0.5).mean()  # expect: GL603
"""
    + STEP,
    "sqrt of the mean of all squares": """
for x, y in loader:
    loss = torch.sqrt(F.mse_loss(model(x), y))  # expect: GL606
"""
    + STEP
    + """
class RMSELoss(nn.Module):
    def forward(self, pred, target):
        return torch.sqrt(((pred - target) ** 2).mean())  # expect: GL606
""",
    "sqrt with an eps": """
for x, y in loader:
    loss = torch.sqrt(F.mse_loss(model(x), y) + 1e-8) + ((model(x) - y) ** 2 + 1e-8).sqrt().mean()
"""
    + STEP,
    "a softmax by hand": """
for x, y in loader:
    out = model(x)
    e = torch.exp(out)  # expect: GL604
    loss = F.nll_loss((e / e.sum(dim=1, keepdim=True) + 1e-8).log(), y)
"""
    + STEP,
    "a softmax by hand that subtracts the largest first": """
for x, y in loader:
    out = model(x)
    e = torch.exp(out - out.max(dim=1, keepdim=True).values)
    loss = F.nll_loss((e / e.sum(dim=1, keepdim=True) + 1e-8).log(), y)
"""
    + STEP,
    "a module's loss": """
class FocalLoss(nn.Module):
    def forward(self, pred, target):
        return -((1 - pred) ** 2 * target * torch.log(pred)).mean()  # expect: GL601
""",
    "log of a softmax in a helper": """
def pair_loss(one, two, tau):
    shares = torch.softmax(one @ two.t() / tau, dim=-1)
    return -torch.log(shares).diag().mean()  # expect: GL601
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
    "a schedule at the end of the epoch": """
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10)
for epoch in range(3):
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    schedule.step()
""",
    "deep stacks that saturate": """
wide = nn.Sequential(  # expect: GL806
    nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(),
    nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(),
)
def deep(depth=20):
    layers = []
    for _ in range(depth):
        layers += [nn.Linear(8, 8), nn.Sigmoid()]
    return nn.Sequential(*layers)  # expect: GL806
def normed(depth=20):
    layers = []
    for _ in range(depth):
        layers += [nn.Linear(8, 8), nn.LayerNorm(8), nn.Sigmoid()]
    return nn.Sequential(*layers)
def shallow(depth=3):
    layers = []
    for _ in range(depth):
        layers += [nn.Linear(8, 8), nn.Tanh()]
    return nn.Sequential(*layers)
""",
    "a wrapper around a model that is not seen may hold an autocast": """
from elsewhere import Net
net = nn.DataParallel(Net(3)).cuda()
opt = torch.optim.AdamW(net.parameters())
scaler = torch.amp.GradScaler("cuda")
for x, y in loader:
    opt.zero_grad()
    loss = F.mse_loss(net(x), y)
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
""",
    "a part of a model may hold an autocast": """
class Part(nn.Module):
    def forward(self, x):
        with torch.autocast("cuda"):
            return x @ x
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.part = Part()
    def forward(self, x):
        return self.part(x)
net = Net()
opt = torch.optim.AdamW(net.parameters())
scaler = torch.amp.GradScaler("cuda")
for x, y in loader:
    opt.zero_grad()
    loss = F.mse_loss(net(x), y)
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
""",
    "parts that are seen hold none": """
class Part(nn.Module):
    def forward(self, x):
        return x @ x
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.part = Part()
    def forward(self, x):
        return self.part(x)
net = nn.DataParallel(Net())
opt = torch.optim.AdamW(net.parameters())
scaler = torch.amp.GradScaler("cuda")
for x, y in loader:
    opt.zero_grad()
    loss = F.mse_loss(net(x), y)  # expect: GL208
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
""",
    "what makes a model is not one": """
from models import *
def fit(loader, settings):
    net = build_model(settings)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for x, y in loader:
        net.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        opt.step()
""",
    "a function handed out is followed": """
def updater(net, opt):
    def update(x, y):
        opt.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        opt.step()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)  # expect: GL101
        return loss.item()
    return update
""",
    "two steps of a function, one after its loop": """
def turn(G, D, n):
    for k in range(n):
        D.opt.zero_grad()
        loss = D(k).mean()
        loss.backward()
        D.opt.step()
    G.opt.zero_grad()
    for k in range(n):
        loss = G(k).mean() / n
        loss.backward()
    G.opt.zero_grad()  # expect: GL103
    G.opt.step()
""",
    "updates by hand": """
for x, y in loader:
    loss = F.mse_loss(model(x), y)
    model.zero_grad()
    loss.backward()
    with torch.no_grad():
        for p in model.parameters():
            p -= 0.1 * p.grad
for x, y in loader:
    loss = F.mse_loss(model(x), y)
    loss.backward()
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(p - 0.1 * p.grad)
            p.grad = None
for x, y in loader:
    loss = F.mse_loss(model(x), y)
    loss.backward()
    for p in model.parameters():
        p.data.add_(p.grad.data, alpha=-0.1)  # expect: GL305
""",
    "weights that are attacked and put back are no update": """
for x, y in loader:
    F.mse_loss(model(x), y).backward()
    for p in model.parameters():
        p.data.add_(0.1 * p.grad)
    F.mse_loss(model(x), y).backward()
    for p, old in zip(model.parameters(), backup):
        p.data.copy_(old)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
""",
    "a model or its wrapper, as a flag says": """
from torch.nn.parallel import DistributedDataParallel as DDP
class Trainer:
    def __init__(self, parallel=False):
        self.parallel, self.net = parallel, Net()
        self.opt = torch.optim.Adam(self.net.parameters())
        if self.parallel:
            self.wrapped = DDP(self.net)
    def train(self):
        net = self.net if not self.parallel else self.wrapped
        self.opt.zero_grad()
        loss = net(next(self.data)).mean()
        loss.backward()
        self.opt.step()
""",
    "no_sync around the whole window": """
wrapped = nn.parallel.DistributedDataParallel(model)
for parts in loader:
    optimizer.zero_grad()
    with wrapped.no_sync():  # expect: GL502
        for x, y in parts:
            (F.cross_entropy(wrapped(x), y) / 4).backward()
    optimizer.step()
for parts in loader:
    optimizer.zero_grad()
    for i in range(4):
        with wrapped.no_sync() if i < 3 else nullcontext():
            x, y = parts[i]
            (F.cross_entropy(wrapped(x), y) / 4).backward()
    optimizer.step()
for parts in loader:
    optimizer.zero_grad()
    for i, (x, y) in enumerate(parts):
        if i < len(parts) - 1:
            with wrapped.no_sync():
                (F.cross_entropy(wrapped(x), y) / 4).backward()
        else:
            (F.cross_entropy(wrapped(x), y) / 4).backward()
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
    "two models made in one statement": """
class Pair:
    def __init__(self, made):
        self.one, self.two = made(), made()
        self.first = torch.optim.Adam(self.one.parameters())
        self.second = torch.optim.Adam(self.two.parameters())
    def update(self, x, y):
        self.first.zero_grad()
        F.mse_loss(self.one(x), y).backward()
        self.first.step()
        nn.utils.clip_grad_norm_(self.one.parameters(), 1.0)  # expect: GL101
        self.second.zero_grad()
        F.mse_loss(self.two(x), y).backward()
        self.second.step()
    def fit(self, batches):
        for x, y in batches:
            self.update(x, y)
""",
    "a schedule that Accelerate was not given": """
from accelerate import Accelerator
accelerator = Accelerator(gradient_accumulation_steps=4)
free = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
held = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
model, optimizer, held = accelerator.prepare(model, optimizer, held)
for x, y in loader:
    with accelerator.accumulate(model):
        accelerator.backward(F.cross_entropy(model(x), y))
        optimizer.step()
        free.step()  # expect: GL401
        held.step()
        optimizer.zero_grad()
""",
    "Accelerate without a window": """
from accelerate import Accelerator
accelerator = Accelerator()
free = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
model, optimizer = accelerator.prepare(model, optimizer)
for x, y in loader:
    with accelerator.accumulate(model):
        accelerator.backward(F.cross_entropy(model(x), y))
        optimizer.step()
        free.step()
        optimizer.zero_grad()
""",
    "one of two wrapped models is called raw": """
first = nn.parallel.DistributedDataParallel(nn.Linear(8, 8))
second = nn.parallel.DistributedDataParallel(nn.Linear(8, 4))
both = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1)
for x, y in loader:
    both.zero_grad()
    hidden = first.module(x)  # expect: GL504
    F.cross_entropy(second(hidden), y).backward()
    both.step()
for x, y in loader:
    both.zero_grad()
    with torch.no_grad():
        hidden = first.module(x)
    F.cross_entropy(second(hidden), y).backward()
    both.step()
""",
    "update() in a window that is a loop of its own": """
scaler = torch.amp.GradScaler()
while True:
    for k in range(4):
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.cross_entropy(model(torch.randn(2, 8)), torch.zeros(2).long()) / 4
        scaler.scale(loss).backward()
        scaler.update()  # expect: GL213
    scaler.step(optimizer)
    optimizer.zero_grad()
""",
    "a function that says whether all is finite": """
def fine(net):
    for p in net.parameters():
        if not torch.isfinite(p.grad).all():
            return False
    return True
scaler = torch.amp.GradScaler()
for x, y in loader:
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = F.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    if not fine(model):
        continue  # expect: GL206
    scaler.step(optimizer)
    scaler.update()
""",
    "the loss alone inside autocast": """
def run(net, criterion, opt, scaler, batches):
    for x, y in batches:
        opt.zero_grad()
        out = net(x)  # expect: GL208
        with torch.autocast("cuda", dtype=torch.float16):
            loss = criterion(out, y)
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
def taught(net, teacher, criterion, opt, scaler, batches):
    for x, y in batches:
        opt.zero_grad()
        with torch.no_grad():
            aim = teacher(x)
        with torch.autocast("cuda", dtype=torch.float16):
            loss = criterion(aim, net(x))
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
def plain(net, criterion, opt, scaler, batches):
    for x, y in batches:
        opt.zero_grad()
        out = net(x)
        with torch.autocast("cuda", enabled=False):
            loss = criterion(out, y)
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
""",
    "a type kept in an attribute": """
class Engine:
    def __init__(self, net):
        self.net, self.kind = net, torch.bfloat16
        self.opt = torch.optim.SGD(net.parameters(), lr=0.1)
        self.scaler = torch.amp.GradScaler()
    def fit(self, batches):
        for x, y in batches:
            self.opt.zero_grad()
            with torch.autocast("cuda", dtype=self.kind):
                loss = F.cross_entropy(self.net(x), y)
            self.scaler.scale(loss).backward()  # expect: GL211
            self.scaler.step(self.opt)
            self.scaler.update()
""",
    "training_step of a module that optimizes by itself": """
import lightning
class Lit(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.net = nn.Linear(8, 4)
    def training_step(self, batch, i):
        opt = self.optimizers()
        self.manual_backward(F.cross_entropy(self.net(batch[0]), batch[1]))
        opt.step()  # expect: GL305
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
class Zeroed(Lit):
    def on_train_batch_start(self, batch, i):
        self.optimizers().zero_grad()
""",
    "an optimizer toggled is none handed to strangers": """
from lightning import LightningModule
class Two(LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.net = nn.Linear(8, 4)
    def training_step(self, batch, batch_idx):
        opt = self.optimizers()
        self.toggle_optimizer(opt)
        loss = F.mse_loss(self.net(batch[0]), batch[1])
        self.manual_backward(loss)  # expect: GL301
        if (batch_idx + 1) % 4 == 0 or self.trainer.is_last_batch:
            opt.step()
            opt.zero_grad()
        self.untoggle_optimizer(opt)
    def configure_optimizers(self):
        return torch.optim.SGD(self.net.parameters(), lr=0.1)
""",
    "Fabric reduces in the forward pass, too": """
from lightning.fabric import Fabric
fabric = Fabric(devices=2)
model, optimizer = fabric.setup(model, optimizer)
for i, (x, y) in enumerate(loader):
    part = (i + 1) % 4 != 0
    loss = F.cross_entropy(model(x), y) / 4
    with fabric.no_backward_sync(model, enabled=part):  # expect: GL503
        fabric.backward(loss)
    if not part:
        optimizer.step()  # expect: GL307
        optimizer.zero_grad()
""",
    "a softmax written out": """
def my_loss(logits, y):
    share = logits.exp() / logits.exp().sum(1, keepdim=True)  # expect: GL604
    return -torch.log(share[range(len(y)), y]).mean()  # expect: GL601
""",
    "a running mean of losses": """
mean, other = 0.0, 0.0
for x, y in loader:
    loss = F.cross_entropy(model(x), y)
    mean = 0.9 * mean + 0.1 * loss  # expect: GL605
    other = 0.9 * other + 0.1 * loss.item()
    loss = 0.5 * loss + 0.1 * loss
"""
    + STEP,
    "a number for the log": """
log, seen = [], []
for x, y in loader:
    out = model(x)
    loss = out.sum() + 1
    log.append(out.mean())  # expect: GL605
    seen.append(out)
"""
    + STEP,
    "the length of a derivative": """
for x, y in loader:
    x.requires_grad_(True)
    out = model(x)
    slope = torch.autograd.grad(out.sum(), x, create_graph=True)[0]
    loss = F.cross_entropy(out, y) + (torch.sqrt(slope.pow(2).sum(1)) - 1).pow(2).mean()
"""
    + STEP,
    "tasks of a meta-learner are added up": """
for tasks in loader:
    optimizer.zero_grad()
    for i in range(4):
        learner = meta.clone()
        learner.adapt(F.mse_loss(learner(tasks[i]), tasks[i]))
        F.mse_loss(learner(tasks[i]), tasks[i]).backward()
    optimizer.step()
""",
    "a default of what is called is as known as what it is handed": """
class Scaler:
    def __init__(self):
        self.inner = torch.amp.GradScaler("cuda")
    def __call__(self, loss, opt, params, update=True):
        self.inner.scale(loss).backward()
        if update:
            nn.utils.clip_grad_norm_(params, 1.0)  # expect: GL201
            self.inner.step(opt)
            self.inner.update()
scaler = Scaler()
for x, y in loader:
    with torch.autocast("cuda"):
        loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    scaler(loss, optimizer, model.parameters())
""",
    "Accelerate's own scaler, and a clip past it": """
from accelerate import Accelerator
accelerator = Accelerator(mixed_precision="fp16")
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for x, y in loader:
    optimizer.zero_grad()
    accelerator.backward(F.cross_entropy(model(x), y))
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # expect: GL201
    optimizer.step()
for x, y in loader:
    optimizer.zero_grad()
    accelerator.backward(F.cross_entropy(model(x), y))
    accelerator.unscale_gradients(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
""",
    "Accelerate in bf16 scales no loss": """
from accelerate import Accelerator
accelerator = Accelerator(mixed_precision="bf16")
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for x, y in loader:
    optimizer.zero_grad()
    accelerator.backward(F.cross_entropy(model(x), y))
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
""",
    "Fabric's own scaler, and a clip past it": """
from lightning.fabric import Fabric
fabric = Fabric(precision="16-mixed")
model, optimizer = fabric.setup(model, optimizer)
for x, y in loader:
    optimizer.zero_grad()
    fabric.backward(F.cross_entropy(model(x), y))
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # expect: GL201
    optimizer.step()
""",
    "apex where it is wanted": """
from apex import amp
def run(args, model, loader):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if args.apex:
        model, optimizer = amp.initialize(model, optimizer, opt_level="O1")
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        if args.apex:
            with amp.scale_loss(loss, optimizer) as scaled_loss:
                scaled_loss.backward()
        else:
            loss.backward()
        optimizer.step()
""",
    "what trainers are told": """
from lightning import Trainer
from transformers import TrainingArguments
Trainer(gradient_clip_val=0.5, gradient_clip_algorithm="value")  # expect: GL810
Trainer(gradient_clip_val=1.0, gradient_clip_algorithm="norm")
TrainingArguments("out", max_grad_norm=1e-3)  # expect: GL811
TrainingArguments("out", max_grad_norm=1.0)
Trainer(gradient_clip_val=0.001)  # expect: GL811
""",
}


@pytest.mark.parametrize("name", CASES)
def test_this_is_said_and_nothing_else(name, tmp_path):
    text = HEAD + CASES[name]
    assert said(text, tmp_path) == expected(text)


def test_a_loop_that_never_looks_at_its_gradients_is_told_so_where_it_is_asked_for(tmp_path):
    loop = HEAD + "for x, y in loader:\n    loss = F.cross_entropy(model(x), y)\n" + STEP
    look = "    norm = sum(p.grad.norm() for p in model.parameters())\n"
    clip = "    nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
    assert said(loop, tmp_path, "GL807") == {(loop.count("\n"), "GL807")}
    assert said(loop + look, tmp_path, "GL807") == set()
    assert said(loop.replace("    optimizer.step()\n", clip + "    optimizer.step()\n"), tmp_path, "GL807") == set()


def test_a_mistake_in_a_helper_of_another_file_is_said_there_and_once(tmp_path, capsys):
    (tmp_path / "steps.py").write_text(
        "import torch\ndef act(loss, net, opt, due):\n    loss.backward()\n"
        "    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)\n    if due:\n        opt.step()\n"
        "        opt.zero_grad()\n"
    )
    loop = "def run(net, opt, loader, n):\n    opt.zero_grad()\n    for i, (x, y) in enumerate(loader):\n"
    loop += "        due = (i + 1) % n == 0\n"
    loop += "        loss = F.mse_loss(net(x), y) / n\n        act(loss, net, opt, due)\n"
    for name in ("one.py", "two.py"):
        (tmp_path / name).write_text("from torch.nn import functional as F\nfrom steps import act\n" + loop)
    for paths in ([tmp_path], [tmp_path / "one.py"]):
        assert main(["--severity", "error", "--format", "json", *map(str, paths)]) == 1
        found = json.loads(capsys.readouterr().out)
        assert [(Path(f["path"]).name, f["line"], f["code"]) for f in found] == [("steps.py", 4, "GL304")]
    text = (tmp_path / "steps.py").read_text().replace("1.0)", "1.0)  # gradlab: ignore[GL304]")
    (tmp_path / "steps.py").write_text(text)
    assert main(["--severity", "error", str(tmp_path)]) == 0
