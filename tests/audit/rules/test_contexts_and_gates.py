"""Contexts that may be null, gradients zeroed under conditions, second losses: correct loops in which nothing is found."""

from __future__ import annotations

import pytest
from audited_snippets import assert_faults

CASES = {
    "method context or null, scaler enabled by flag": """
from contextlib import nullcontext
class T:
    def __init__(self, net, opt, use_amp):
        self.net, self.opt, self.use_amp = net, opt, use_amp
        self.scaler = torch.amp.GradScaler("cuda", enabled=use_amp)
    def ctx(self):
        if self.use_amp:
            return torch.autocast("cuda", dtype=torch.float16)
        return nullcontext()
    def fit(self):
        for x, y in loader:
            self.opt.zero_grad()
            with self.ctx():
                loss = F.cross_entropy(self.net(x), y)
            self.scaler.scale(loss).backward()
            self.scaler.step(self.opt)
            self.scaler.update()
""",
    "function context null first": """
from contextlib import nullcontext
def ctx(use_amp):
    if not use_amp:
        return nullcontext()
    return torch.autocast("cuda", dtype=torch.float16)
def fit(net, opt, use_amp):
    scaler = torch.amp.GradScaler("cuda", enabled=use_amp)
    for x, y in loader:
        opt.zero_grad()
        with ctx(use_amp):
            loss = F.cross_entropy(net(x), y)
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
""",
    "no scaler, context may be bf16 or null": """
from contextlib import nullcontext
def ctx(kind):
    if kind == "bf16":
        return torch.autocast("cuda", dtype=torch.bfloat16)
    elif kind == "fp16":
        return torch.autocast("cuda", dtype=torch.float16)
    return nullcontext()
def fit(net, opt, kind):
    scaler = torch.amp.GradScaler("cuda", enabled=kind == "fp16")
    for x, y in loader:
        opt.zero_grad()
        with ctx(kind):
            loss = F.cross_entropy(net(x), y)
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
""",
    "gradients that a function of elsewhere reduces": """
from torch.nn.parallel import DistributedDataParallel as DDP
from elsewhere import allreduce_gradients
net = DDP(model)
for x, y in loader:
    optimizer.zero_grad()
    with net.no_sync():
        F.cross_entropy(net(x), y).backward()
    allreduce_gradients(list(net.parameters()))
    optimizer.step()
for x, y in loader:
    optimizer.zero_grad()
    with net.no_sync():  # expect: GL502
        F.cross_entropy(net(x), y).backward()
    optimizer.step()
""",
    "a context that a method chooses": """
from contextlib import nullcontext
from torch.nn.parallel import DistributedDataParallel as DDP
class Trainer:
    def __init__(self, parallel, n):
        self.net, self.parallel, self.n = DDP(nn.Linear(8, 4)), parallel, n
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.1)
    def context(self, last):
        if not self.parallel:
            return nullcontext()
        if last:
            return nullcontext()
        else:
            return self.net.no_sync()
    def fit(self, batches):
        for _ in range(9):
            self.opt.zero_grad()
            for i in range(self.n):
                x, y = next(batches)
                with self.context(i == self.n - 1):
                    (F.cross_entropy(self.net(x), y) / self.n).backward()
            self.opt.step()
    def fit_too_late(self, batches):
        for _ in range(9):
            self.opt.zero_grad()
            for i in range(self.n):
                x, y = next(batches)
                with self.context(i == self.n):  # expect: GL502
                    (F.cross_entropy(self.net(x), y) / self.n).backward()
            self.opt.step()
""",
    "a scaler of another making, which steps the schedule too": """
from somewhere import NativeScaler
def fit(net, opt, scheduler, n):
    scaler = NativeScaler()
    for i, (x, y) in enumerate(loader):
        loss = F.cross_entropy(net(x), y) / n
        scaler(loss, opt, net.parameters(), scheduler, 1.0, i % n == 0)
""",
    "several optimizers that step through the scaler, in a method that is defined twice": """
class Trainer:
    def __init__(self, net, optimizer):
        self.net, self.optimizer = net, optimizer
    def train_epoch(self):
        raise NotImplementedError
    def train_epoch(self):
        scaler = torch.amp.GradScaler("cuda") if half else None
        for x, y in loader:
            self.optimizer.zero_grad()
            with torch.autocast("cuda", enabled=half):
                loss = F.cross_entropy(self.net(x), y)
            if scaler is not None:
                scaler.scale(loss).backward()
            else:
                loss.backward()
            self.optimizer.step("net", scaler=scaler)
class Other(Trainer):
    def train_epoch(self):
        raise NotImplementedError
    def train_epoch(self):
        for x, y in loader:
            self.optimizer.zero_grad()
            F.cross_entropy(self.net(x), y).backward()
            self.optimizer.step()
            torch.nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)  # expect: GL101
""",
    "what saves all, and an optimizer of unseen making that tells its rate": """
from elsewhere import Adam, lm_checkpoint
def make(net):
    optimizer = Adam([p for p in net.parameters()], lr=0.1)
    return optimizer, net
def fit(net, optimizer):
    for x, y in loader:
        F.cross_entropy(net(x), y).backward()
        optimizer.step()  # expect: GL305
        print(optimizer.get_lr())
        lm_checkpoint(net, optimizer)
optimizer, net = make(model)
fit(net, optimizer)
""",
    "bf16 or null without scaler": """
from contextlib import nullcontext
def ctx(dtype):
    if dtype == "float16":
        return torch.autocast("cuda", dtype=torch.float16)
    return nullcontext()
def fit(net, opt, dtype, scaler=None):
    for x, y in loader:
        opt.zero_grad()
        with ctx(dtype):
            loss = F.cross_entropy(net(x), y)
        if scaler is not None:
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
        else:
            loss.backward()
            opt.step()
""",
    "contextmanager generator that may cast": """
from contextlib import contextmanager
@contextmanager
def maybe(use):
    if use:
        with torch.autocast("cuda", dtype=torch.float16):
            yield
    else:
        yield
def fit(net, opt, use):
    scaler = torch.amp.GradScaler("cuda", enabled=use)
    for x, y in loader:
        opt.zero_grad()
        with maybe(use):
            loss = F.cross_entropy(net(x), y)
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
""",
    "wrapper zero_grad with set_to_none by hand": """
class Opt:
    def __init__(self, params, lr):
        self.params = list(params)
        self.inner = torch.optim.SGD(self.params, lr=lr)
    def zero_grad(self):
        for p in self.params:
            if p.grad is not None:
                p.grad = torch.zeros_like(p.grad)
    def step(self):
        self.inner.step()
opt = Opt(model.parameters(), 0.1)
for x, y in loader:
    opt.zero_grad()
    F.cross_entropy(model(x), y).backward()
    opt.step()
""",
    "wrapper that accumulates by itself": """
class Accumulating:
    def __init__(self, opt, n):
        self.opt, self.n, self.i = opt, n, 0
    def zero_grad(self):
        if self.i == 0:
            self.opt.zero_grad()
    def step(self):
        self.i += 1
        if self.i >= self.n:
            self.opt.step()
            self.i = 0
def fit(n):
    opt = Accumulating(optimizer, n)
    for x, y in loader:
        opt.zero_grad()
        (F.cross_entropy(model(x), y) / n).backward()
        opt.step()
""",
    "fairseq style optimizer": """
class FP16Optimizer:
    def __init__(self, opt, params):
        self.opt, self.params = opt, params
        self._needs_sync = True
    def zero_grad(self):
        for p in self.params:
            p.grad = None
        for p32 in self.master:
            if p32.grad is not None:
                p32.grad.zero_()
        self._needs_sync = False
    def backward(self, loss):
        (loss * 128).backward()
    def step(self):
        self.opt.step()
def fit(opt: FP16Optimizer):
    for x, y in loader:
        opt.zero_grad()
        loss = F.cross_entropy(model(x), y)
        opt.backward(loss)
        opt.step()
""",
    "second loss under a gated zero": """
class T:
    def __init__(self, net, opt, n):
        self.net, self.opt, self.n = net, opt, n
    def fit(self, reg):
        for i, (x, y) in enumerate(loader):
            if i % self.n == 0:
                self.opt.zero_grad()
            loss = F.cross_entropy(self.net(x), y) / self.n
            loss.backward()
            if reg:
                extra = reg(self.net) / self.n
                extra.backward()
            if (i + 1) % self.n == 0:
                self.opt.step()
""",
    "stylegan like phases": """
def fit(g, d, og, od, k):
    for i, (x, y) in enumerate(loader):
        for name, net, opt, every in (("g", g, og, 1), ("d", d, od, 1), ("reg", d, od, k)):
            if i % every != 0:
                continue
            opt.zero_grad()
            loss = net(x).mean()
            loss.backward()
            opt.step()
""",
    "Lightning scheduler dict, automatic": """
import lightning as L
class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(8, 4)
    def configure_optimizers(self):
        opt = torch.optim.AdamW(self.net.parameters(), lr=1e-3)
        return {"optimizer": opt, "lr_scheduler": {"scheduler": torch.optim.lr_scheduler.StepLR(opt, 1), "interval": "step"}}
    def training_step(self, batch, batch_idx):
        x, y = batch
        return {"loss": F.cross_entropy(self.net(x), y)}
""",
    "accelerate in a class with properties": """
from accelerate import Accelerator
class T:
    def __init__(self, net, opt, dl):
        self.accelerator = Accelerator(mixed_precision="fp16", gradient_accumulation_steps=4)
        self.net, self.opt, self.dl = self.accelerator.prepare(net, opt, dl)
    @property
    def device(self):
        return self.accelerator.device
    def fit(self):
        for x, y in self.dl:
            with self.accelerator.accumulate(self.net):
                with self.accelerator.autocast():
                    loss = F.cross_entropy(self.net(x), y)
                self.accelerator.backward(loss)
                if self.accelerator.sync_gradients:
                    self.accelerator.clip_grad_norm_(self.net.parameters(), 1.0)
                self.opt.step()
                self.opt.zero_grad()
""",
    "lucidrains style accelerate": """
from accelerate import Accelerator
class T:
    def __init__(self, net, n):
        self.accelerator = Accelerator(mixed_precision="fp16")
        self.n = n
        self.opt = torch.optim.Adam(net.parameters(), lr=1e-3)
        self.net, self.opt = self.accelerator.prepare(net, self.opt)
    def train(self, steps):
        for _ in range(steps):
            total = 0.0
            for _ in range(self.n):
                x, y = next(self.dl)
                with self.accelerator.autocast():
                    loss = F.cross_entropy(self.net(x), y)
                    loss = loss / self.n
                    total += loss.item()
                self.accelerator.backward(loss)
            self.accelerator.wait_for_everyone()
            self.accelerator.clip_grad_norm_(self.net.parameters(), 1.0)
            self.opt.step()
            self.opt.zero_grad()
""",
    "contexts joined by and: the last one is entered": """
scaler = torch.amp.GradScaler("cuda")
for x, y in loader:
    optimizer.zero_grad()
    with torch.enable_grad() and torch.autocast("cuda"):  # expect: GL216
        loss = F.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
""",
    "contexts joined by and or or": """
def predict(x, flag, context):
    with torch.no_grad() and context:  # expect: GL216
        model(x)
    with torch.no_grad() or torch.autocast("cuda"):  # expect: GL216
        model(x)
    with context or torch.no_grad():
        model(x)
    with torch.no_grad(), torch.autocast("cuda", enabled=flag and True):
        return model(x)
""",
    "contexts joined by and that are known by their names": """
def predict(x, amp_ctx, use_autocast, backend):
    with amp_ctx and backend.get_context(0):  # expect: GL216
        model(x)
    with use_autocast and torch.autocast("cuda"):
        model(x)
    with amp_ctx or backend.get_context(0):
        return model(x)
""",
    "a context that is no_sync under a condition, and else unknown": """
import contextlib
from torch.nn.parallel import DistributedDataParallel as DDP
def fit(net, opt, n, name):
    net = DDP(net)
    for i, (x, y) in enumerate(loader):
        context = getattr(contextlib, name)
        if (i + 1) % n != 0:
            context = net.no_sync
        with context():
            loss = F.cross_entropy(net(x), y) / n
            loss.backward()
        if (i + 1) % n == 0:
            opt.step()
            opt.zero_grad()
def fit_known(net, opt, n, old):
    net = DDP(net)
    for i, (x, y) in enumerate(loader):
        context = getattr(contextlib, "suppress" if old else "nullcontext")
        if (i + 1) % n != 0:
            context = net.no_sync
        with context():
            loss = F.cross_entropy(net(x), y) / n
            loss.backward()
        if (i + 1) % n == 0:
            opt.step()
            opt.zero_grad()
def fit_without(net, opt, n, name):
    net = DDP(net)
    for i, (x, y) in enumerate(loader):
        context = getattr(contextlib, name)
        if (i + 1) % n == 0:
            context = net.no_sync
        with context():  # expect: GL502
            loss = F.cross_entropy(net(x), y) / n
            loss.backward()
        if (i + 1) % n == 0:
            opt.step()
            opt.zero_grad()
""",
}


@pytest.mark.parametrize("name", CASES)
def test_marked_lines_are_found_and_no_other_fault(name, tmp_path):
    assert_faults(CASES[name], tmp_path)
