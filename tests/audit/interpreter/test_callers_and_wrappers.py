"""Objects that a caller makes, steps in the caller, wrapped optimizers, contexts that may be null."""

from __future__ import annotations

import pytest
from audited_snippets import assert_faults

CASES = {
    "a wrapper that is never made, because its flag is off": """
DISTRIBUTED = False
class Trainer:
    def __init__(self, net: nn.Module):
        if DISTRIBUTED:
            self.net = nn.parallel.DistributedDataParallel(net)
        else:
            self.net = net
    def fit(self):
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(self.net(x), y).backward()
            optimizer.step()
""",
    "ddp made by a caller, another method of the inner module called": """
from torch.nn.parallel import DistributedDataParallel as DDP
def train(net, opt):
    for x, y in loader:
        opt.zero_grad()
        net.module.objective(x, y).backward()  # expect: GL504
        opt.step()
def main():
    train(DDP(model), optimizer)
""",
    "ddp made by a caller, another method of the inner module called after the wrapper": """
from torch.nn.parallel import DistributedDataParallel as DDP
def train(net, opt):
    for x, y in loader:
        opt.zero_grad()
        net.module.objective(net(x), y).backward()
        opt.step()
def main():
    train(DDP(model), optimizer)
""",
    "optimizer wrapper with a key": """
class Optimizers:
    def __init__(self, **opts):
        self.opts = opts
    def zero_grad(self):
        for o in self.opts.values():
            o.zero_grad()
    def step(self, key=None):
        if key is not None:
            self.opts[key].step()
        else:
            for o in self.opts.values():
                o.step()
opt = Optimizers(a=optimizer)
for x, y in loader:
    F.cross_entropy(model(x), y).backward()
    opt.step("a")  # expect: GL305
""",
    "optimizer wrapper clip after": """
class Multi:
    def __init__(self, optimizers):
        self.optimizers = optimizers
    def zero_grad(self):
        for o in self.optimizers:
            o.zero_grad()
    def step(self):
        for o in self.optimizers:
            o.step()
opt = Multi([torch.optim.SGD(model[i].parameters(), lr=1.0) for i in (0, 2)])
for x, y in loader:
    opt.zero_grad()
    F.cross_entropy(model(x), y).backward()
    opt.step()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # expect: GL101
""",
    "noam wrapper": """
class Noam:
    def __init__(self, optimizer, width):
        self.optimizer, self.n = optimizer, 0
        self.width = width
    def zero_grad(self):
        self.optimizer.zero_grad()
    def step_and_update_lr(self):
        self.n += 1
        for g in self.optimizer.param_groups:
            g["lr"] = self.width * self.n
        self.optimizer.step()
opt = Noam(optimizer, 8)
for x, y in loader:
    F.cross_entropy(model(x), y).backward()
    opt.step_and_update_lr()  # expect: GL305
""",
    "noam wrapper clip after": """
class Noam:
    def __init__(self, optimizer, width):
        self._optimizer, self.n = optimizer, 0
        self.width = width
    def zero_grad(self):
        self._optimizer.zero_grad()
    def step(self):
        self.n += 1
        for g in self._optimizer.param_groups:
            g["lr"] = self.width * self.n
        self._optimizer.step()
opt = Noam(optimizer, 8)
for x, y in loader:
    opt.zero_grad()
    F.cross_entropy(model(x), y).backward()
    opt.step()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # expect: GL101
""",
    "trainer object whose caller steps": """
class T:
    def __init__(self, net, opt):
        self.net, self.opt = net, opt
    def forward_backward(self, x, y):
        loss = F.cross_entropy(self.net(x), y)
        loss.backward()
    def update(self):
        self.opt.step()
        torch.nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)  # expect: GL101
        self.opt.zero_grad()
def main():
    t = T(model, optimizer)
    for x, y in loader:
        t.forward_backward(x, y)
        t.update()
""",
    "false: autocast behind a helper that may be a nullcontext": """
from contextlib import nullcontext
def amp(enabled):
    if enabled:
        return torch.autocast("cuda", dtype=torch.float16)
    return nullcontext()
def train(net, opt, scaler, args):
    for x, y in loader:
        opt.zero_grad()
        with amp(args.amp):
            loss = F.cross_entropy(net(x), y)
        if scaler is not None:
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
        else:
            loss.backward()
            opt.step()
""",
    "false: autocast helper with scaler always": """
from contextlib import nullcontext
def get_autocast(precision):
    if precision == "fp32":
        return nullcontext()
    if precision == "bf16":
        return torch.autocast("cuda", dtype=torch.bfloat16)
    return torch.autocast("cuda", dtype=torch.float16)
def train(net, opt, args):
    scaler = torch.amp.GradScaler("cuda") if args.precision == "fp16" else None
    for x, y in loader:
        opt.zero_grad()
        with get_autocast(args.precision):
            loss = F.cross_entropy(net(x), y)
        if scaler:
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
        else:
            loss.backward()
            opt.step()
""",
    "false: autocast helper as a partial": """
from contextlib import nullcontext
def get_autocast(precision):
    if precision == "amp":
        return torch.cuda.amp.autocast
    elif precision == "amp_bf16":
        return lambda: torch.cuda.amp.autocast(dtype=torch.bfloat16)
    else:
        return nullcontext
def train(net, opt, scaler, args):
    autocast = get_autocast(args.precision)
    for x, y in loader:
        opt.zero_grad()
        with autocast():
            loss = F.cross_entropy(net(x), y)
        if scaler is not None:
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
        else:
            loss.backward()
            opt.step()
""",
    "false: p.grad zeros in a wrapper": """
class Wrapper:
    def __init__(self, net, opt):
        self.net, self.opt = net, opt
    def zero_grad(self):
        for p in self.net.parameters():
            p.grad = torch.zeros_like(p)
    def step(self):
        self.opt.step()
def main():
    w = Wrapper(model, optimizer)
    for x, y in loader:
        w.zero_grad()
        F.cross_entropy(model(x), y).backward()
        w.step()
""",
    "false: zeros in the loop": """
for x, y in loader:
    for p in model.parameters():
        p.grad = torch.zeros_like(p.data)
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
""",
    "false: conditional zero_grad in a wrapper": """
class Wrapper:
    def __init__(self, net, opt, n):
        self.net, self.opt, self.n = net, opt, n
        self.count = 0
    def zero_grad(self):
        if self.count % self.n == 0:
            self.opt.zero_grad()
    def step(self):
        self.count += 1
        if self.count % self.n == 0:
            self.opt.step()
def main(n):
    w = Wrapper(model, optimizer, n)
    for x, y in loader:
        w.zero_grad()
        (F.cross_entropy(model(x), y) / n).backward()
        w.step()
""",
    "false: gated zero, second loss": """
n = 4
for i, (x, y) in enumerate(loader):
    if i % n == 0:
        optimizer.zero_grad()
    (F.cross_entropy(model(x), y) / n).backward()
    (1e-3 * sum(p.pow(2).sum() for p in model.parameters()) / n).backward()
    if (i + 1) % n == 0:
        optimizer.step()
""",
    "rpc optimizer: gradients live in the context": """
import torch.distributed.autograd as dist_autograd
from torch.distributed.optim import DistributedOptimizer
def run(net):
    opt = DistributedOptimizer(torch.optim.SGD, net.parameter_rrefs(), lr=0.05)
    for x, y in loader:
        with dist_autograd.context() as context_id:
            loss = F.cross_entropy(net(x), y)
            dist_autograd.backward(context_id, [loss])
            opt.step(context_id)
""",
}


@pytest.mark.parametrize("name", CASES)
def test_marked_lines_are_found_and_no_other_fault(name, tmp_path):
    assert_faults(CASES[name], tmp_path)
