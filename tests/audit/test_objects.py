"""Which optimizer and which model a name stands for, and which functions are followed."""

from __future__ import annotations

import pytest
from marked import HEAD, STEP, agrees, said

CASES = {
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
    "a module's loss": """
class FocalLoss(nn.Module):
    def forward(self, pred, target):
        return -((1 - pred) ** 2 * target * torch.log(pred)).mean()  # expect: GL601
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
}


@pytest.mark.parametrize("name", CASES)
def test_this_is_said_and_nothing_else(name, tmp_path):
    agrees(CASES[name], tmp_path)


def test_a_loop_that_never_looks_at_its_gradients_is_told_so_where_it_is_asked_for(tmp_path):
    loop = HEAD + "for x, y in loader:\n    loss = F.cross_entropy(model(x), y)\n" + STEP
    look = "    norm = sum(p.grad.norm() for p in model.parameters())\n"
    clip = "    nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
    assert said(loop, tmp_path, "GL807") == {(loop.count("\n"), "GL807")}
    assert said(loop + look, tmp_path, "GL807") == set()
    assert said(loop.replace("    optimizer.step()\n", clip + "    optimizer.step()\n"), tmp_path, "GL807") == set()
