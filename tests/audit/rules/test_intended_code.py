"""Correct code that is easily taken for a mistake, beside the mistake: copies, retries, attacks, and more."""

from __future__ import annotations

import pytest
from audited_snippets import HEAD, STEP, expected, findings

HALF = """
scaler = torch.amp.GradScaler("cuda")
for x, y in loader:
    for attempt in range(5):
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
"""
CASES = {
    "a copy of what is wrapped": """
import copy
from torch.nn.parallel import DistributedDataParallel
def compare():
    net = nn.Linear(8, 4)
    reference = copy.deepcopy(net)
    ddp = DistributedDataParallel(net)
    one = torch.optim.SGD(net.parameters(), lr=0.1)
    two = torch.optim.SGD(reference.parameters(), lr=0.1)
    for x, y in loader:
        one.zero_grad()
        two.zero_grad()
        ddp(x).square().mean().backward()
        reference(x).square().mean().backward()
        one.step()
        two.step()
""",
    "an optimizer's own step by another name": """
def run(opt):
    for i, (x, y) in enumerate(loader):
        opt.zero_grad()
        F.cross_entropy(model(x), y).backward()
        if i % 2 == 0:
            opt.fuse_step()
        else:
            opt.step()
""",
    "a scaler that is off where the step goes past it": """
class Trainer:
    def __init__(self, args):
        self.half = args.dtype in [torch.float16]
        self.scaler = torch.amp.GradScaler("cuda", enabled=self.half)
    def fit(self):
        for x, y in loader:
            optimizer.zero_grad()
            with torch.autocast("cuda", enabled=self.half):
                loss = F.cross_entropy(model(x), y)
            self.scaler.scale(loss).backward()
            if self.half:
                self.scaler.step(optimizer)
                self.scaler.update()
            else:
                optimizer.step()
""",
    "the same batch, attacked again": """
def attacked(turn, n):
    for x, y in loader:
        noise = torch.zeros_like(x)
        optimizer.zero_grad()
        for j in range(n):
            loss = F.cross_entropy(model(x + noise), y)
            loss.backward()
            noise = turn(noise)
        optimizer.step()
def parted(n):
    for x, y in loader:
        optimizer.zero_grad()
        for j in range(n):
            loss = F.cross_entropy(model(x[j::n]), y[j::n])
            loss.backward()  # expect: GL301
        optimizer.step()
""",
    "the window's length goes into the batch": """
def fit(net, batches, n):
    for _ in range(9):
        optimizer.zero_grad()
        for i in range(n):
            batch = next(batches)
            batch["scale"] = 1 / (batch["mask"].sum() * n)
            net(**batch).backward()
        optimizer.step()
def plain(net, batches, n):
    for _ in range(9):
        optimizer.zero_grad()
        for i in range(n):
            batch = next(batches)
            net(**batch).backward()  # expect: GL301
        optimizer.step()
""",
    "an overflow is tried again at a lower scale": HALF
    + """        if all(torch.isfinite(p.grad).all() for p in model.parameters()):
            break
        scaler.step(optimizer)
        scaler.update()
""",
    "a loss that is not finite is skipped": HALF
    + """        if torch.isnan(loss):
            continue  # expect: GL206
        scaler.step(optimizer)
        scaler.update()
""",
    "Apex unscales where its block ends": """
from apex import amp
def fit(net, opt):
    net, opt = amp.initialize(net, opt, opt_level="O1")
    for x, y in loader:
        opt.zero_grad()
        with amp.scale_loss(F.cross_entropy(net(x), y), opt) as scaled:
            scaled.backward()
        torch.nn.utils.clip_grad_norm_(amp.master_params(opt), 1.0)
        opt.step()
def inside(net, opt):
    net, opt = amp.initialize(net, opt, opt_level="O1")
    for x, y in loader:
        opt.zero_grad()
        with amp.scale_loss(F.cross_entropy(net(x), y), opt) as scaled:
            scaled.backward()
            torch.nn.utils.clip_grad_norm_(amp.master_params(opt), 1.0)  # expect: GL201
        opt.step()
""",
    "a rate is no prediction": """
def noise_loss(lr, alpha, net):
    noise = (2 / lr * alpha) ** 0.5
    return sum((p * torch.randn_like(p) * noise).sum() for p in net.parameters())
def relative_loss(pred, alpha, net):
    noise = (2 / pred * alpha) ** 0.5  # expect: GL602
    return sum((p * torch.randn_like(p) * noise).sum() for p in net.parameters())
""",
    "an attribute made elsewhere that receives only a batch, and one that received the optimizer": """
from elsewhere import Mixing, Stepping
from lightning import LightningModule
class Plain(LightningModule):
    def __init__(self, n):
        self.automatic_optimization = False
        self.net, self.n, self.mix = nn.Linear(8, 4), n, Mixing(alpha=0.1)
    def configure_optimizers(self):
        return torch.optim.SGD(self.net.parameters(), lr=0.1)
    def training_step(self, batch, i):
        opt = self.optimizers()
        x, y = self.mix(*batch)
        self.manual_backward(F.cross_entropy(self.net(x), y))  # expect: GL301
        if (i + 1) % self.n == 0:
            opt.step()
            opt.zero_grad()
class Helped(LightningModule):
    def __init__(self, n):
        self.automatic_optimization = False
        self.net, self.n = nn.Linear(8, 4), n
        self.mix = Stepping(torch.optim.SGD(self.net.parameters(), lr=0.1))
    def configure_optimizers(self):
        return torch.optim.SGD(self.net.parameters(), lr=0.1)
    def training_step(self, batch, i):
        opt = self.optimizers()
        x, y = self.mix(*batch)
        self.manual_backward(F.cross_entropy(self.net(x), y))
        if (i + 1) % self.n == 0:
            opt.step()
            opt.zero_grad()
""",
    "gradients that are stored elsewhere": """
def gradients(x, y):
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    return [p.grad for p in model.parameters()]
def fit(parts):
    for x, y in loader:
        found = []
        for k in range(parts):
            found.append(gradients(x[k::parts], y[k::parts]))
        for i, p in enumerate(model.parameters()):
            p.grad = sum(part[i] for part in found) / parts
        optimizer.step()
""",
    "no_sync of the project's own, which a flag opens": """
class Trainer(Brain):
    def fit_batch(self, batch):
        due = self.step % self.n == 0
        with self.no_sync(not due):
            loss = self.net(batch).mean()
            (loss / self.n).backward()
        if due:
            self.optimizer.step()
            self.optimizer.zero_grad()
class Plain(Brain):
    def fit_batch(self, batch):
        due = self.step % self.n == 0
        with self.no_sync():  # expect: GL502
            loss = self.net(batch).mean()
            (loss / self.n).backward()
        if due:
            self.optimizer.step()
            self.optimizer.zero_grad()
""",
    "no_sync, or nothing, kept in a name and called": """
import contextlib
from accelerate import Accelerator
def fit(net, opt, batches, n):
    accelerator = Accelerator()
    net, opt, batches = accelerator.prepare(net, opt, batches)
    rest = iter(batches)
    for _ in range(9):
        window = []
        for _ in range(n):
            window += [next(rest)]
        for i, batch in enumerate(window):
            quiet = net.no_sync if i < len(window) - 1 and accelerator.num_processes > 1 else contextlib.nullcontext
            with quiet():
                accelerator.backward(net(batch) / n)
        opt.step()
        opt.zero_grad()
""",
    "two accelerators share one window": """
from accelerate import Accelerator
from transformers import AutoModelForSequenceClassification
def fit(name, batches):
    one = AutoModelForSequenceClassification.from_pretrained(name)
    two = AutoModelForSequenceClassification.from_pretrained(name)
    first, second = Accelerator(), Accelerator()
    opt, other = torch.optim.SGD(one.parameters(), lr=0.1), torch.optim.SGD(two.parameters(), lr=0.1)
    one, opt = first.prepare(one, opt)
    two, other = second.prepare(two, other)
    for batch in batches:
        with first.accumulate(one, two):
            first.backward(one(**batch).loss)
            opt.step()
            opt.zero_grad()
            second.backward(two(**batch).loss)
            other.step()
            other.zero_grad()
""",
    "a scaled loss whose type is annotated": """
from typing import cast
def fit(scaler: torch.amp.GradScaler):
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = F.cross_entropy(model(x), y)
        cast(torch.Tensor, scaler.scale(loss)).backward()
        scaler.step(optimizer)
        scaler.update()
""",
    "a proximal step of the project": """
class Prox(torch.optim.Optimizer):
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                p.data.clamp_(-1, 1)
prox = Prox(model.parameters(), {})
for x, y in loader:
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
    prox.zero_grad()
    prox.step()
""",
    "an optimizer of the project without arguments": """
class Plain(torch.optim.Optimizer):
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                p.data -= 0.1 * p.grad
opt = Plain(model.parameters(), {})
for x, y in loader:
    F.cross_entropy(model(x), y).backward()
    opt.zero_grad()  # expect: GL103
    opt.step()
""",
    "each of several optimizers, and one that is stepped now and then": """
class Agent:
    def __init__(self, n):
        self.n = n
        self.critics, self.actor = [make() for _ in range(n)], make()
        self.opts = [torch.optim.Adam(self.critics[i].parameters()) for i in range(n)]
        self.opt = torch.optim.Adam(self.actor.parameters())
    def update(self, batches):
        for i, (x, y) in enumerate(batches):
            loss = F.mse_loss(self.critics[0](x), y)
            for k in range(self.n):
                self.opts[k].zero_grad()
            loss.backward()
            if (i + 1) % 20 == 0:
                self.opt.zero_grad()
                (-self.critics[0](self.actor(x))).mean().backward()
            for k in range(self.n):
                self.opts[k].step()
            if (i + 1) % 20 == 0:
                self.opt.step()
""",
    "whether the optimizer needs a closure is the same in each iteration": """
import inspect
def needs(opt):
    given = inspect.signature(opt.step).parameters.get("closure")
    return given and given.default == inspect._empty
class Solver:
    def __init__(self, nets, opt=None):
        self.nets, self.opt = nets, opt or torch.optim.Adam(nets.parameters())
    def run(self, batches):
        for batch in batches:
            def closure(zero=True):
                if zero:
                    self.opt.zero_grad()
                loss = self.loss(self.nets(batch))
                loss.backward()
                return loss
            if needs(self.opt):
                self.opt.step(closure)
            else:
                closure(zero=False)
        if not needs(self.opt):
            self.opt.step()
""",
    "the likelihood of a variance, with other terms in the sum": """
class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean, self.logvar = nn.Linear(8, 2), nn.Linear(8, 2)
def divergence(mean, logvar):
    return -0.5 * torch.sum(1 + logvar - mean.pow(2) - logvar.exp())
vae = VAE()
opt = torch.optim.Adam(vae.parameters())
for x, y in loader:
    mean, logvar = vae.mean(x), vae.logvar(x)
    loss = F.mse_loss(mean, y) + divergence(mean, logvar)
    opt.zero_grad()
    loss.backward()
    opt.step()
""",
    "a model that a subclass makes": """
class Base:
    def __init__(self):
        self.net = None
    def fit(self, batches):
        opt = torch.optim.SGD([{"params": [p for n, p in self.net.named_parameters() if "bias" in n]}], lr=0.1)
        for x, y in batches:
            F.cross_entropy(self.net(x), y).backward()
            opt.step()
            self.net.zero_grad()
""",
    "optimizers inside another": """
def fit(net, optimizer, batches):
    for x, y in batches:
        optimizer.zero_grad()
        F.mse_loss(net(x), y).backward()
        optimizer.G.step()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)  # expect: GL101
""",
    "an optimizer that is given a Hessian now and then": """
class Trainer:
    def __init__(self, net, optimizer):
        self.net, self.optimizer = net, optimizer
    def update(self, batch, due):
        x, y = batch
        if due:
            F.cross_entropy(self.net(x), y).backward()
            nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
            self.optimizer.update_hessian(len(x))
            self.optimizer.zero_grad()
        else:
            F.cross_entropy(self.net(x), y).backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
""",
    "an optimizer and a schedule that come as one argument": """
class Task:
    def fit(self, optimizer, batches):
        optimizer, scheduler = optimizer
        for x, y in batches:
            optimizer.zero_grad()
            F.cross_entropy(self.net(x), y).backward()
            optimizer.step()
            scheduler.step()
""",
    "gradients that are read, and discarded": """
def missing(net, x, y):
    net.zero_grad()
    F.cross_entropy(net(x), y).backward()
    found = {name for name, p in net.weights() if p.grad is None}
    net.zero_grad()
    return found
def dead(net, optimizer, x, y):
    before = missing(net, x, y)
    if before:
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()
        before = missing(net, x, y)
    return before
def update(net, optimizer, x, y, due):
    F.cross_entropy(net(x), y).backward()  # expect: GL301
    if due:
        optimizer.step()
        optimizer.zero_grad()
""",
    "another try at one batch": """
def fit(net, opt, epochs):
    for epoch in range(epochs):
        for trial in range(10):
            opt.zero_grad()
            net.loss(net.sample()).backward()
            if all(p.grad.isfinite().all() for p in net.parameters()):
                break
        opt.step()
""",
    "a step per batch or per window, by an argument": """
def update(net, opt, x, y, n, step=None):
    loss = F.cross_entropy(net(x), y)
    if step is not None:
        (loss / n).backward()
        if (step + 1) % n == 0:
            opt.step()
            opt.zero_grad()
    else:
        loss.backward()
        opt.step()
        opt.zero_grad()
""",
    "a batch with bad gradients": """
import speechbrain
class Brain(speechbrain.Brain):
    def fit_batch(self, x, y):
        loss = F.cross_entropy(self.net(x), y)
        loss.backward()
        if self.check_gradients(loss):
            self.opt.step()
        self.opt.zero_grad()
""",
    "a tensor that the optimizer is made of": """
def guide(net, x, n):
    delta = nn.Parameter(torch.zeros_like(x))
    opt = torch.optim.Adam([delta], lr=0.1)
    for i in range(n):
        delta.grad = None
        net(x + delta).sum().backward()
        opt.step()
""",
    "an optimizer that is frozen for a time": """
class Manager:
    def __init__(self, model):
        self.optimizers = [torch.optim.Adam(model[0].parameters()), torch.optim.SGD(model[2].parameters(), 0.1)]
    def step(self, at):
        for opt in self.optimizers:
            if opt.frozen > 0:
                opt.frozen -= 1
                opt.zero_grad()
            elif at % 2 == 1:  # expect: GL307
                opt.step()
                opt.zero_grad()
def train():
    manager = Manager(model)
    for at, (x, y) in enumerate(loader):
        for _ in range(4):
            (F.cross_entropy(model(x), y) / 4).backward()
        manager.step(at)
""",
    "zeroed or stepped, as a window says": """
def train(n):
    for i, (x, y) in enumerate(loader):
        (F.cross_entropy(model(x), y) / n).backward()
        if (i + 1) % n == 0:  # expect: GL307
            optimizer.step()
        else:
            optimizer.zero_grad()  # expect: GL306
""",
    "one update of the scale after the steps of several optimizers": """
class Trainer:
    def __init__(self, critics):
        self.critics = critics
        self.optims = {key: torch.optim.SGD(one.parameters(), lr=0.1) for key, one in critics.items()}
        self.scaler = torch.amp.GradScaler("cuda")
    def update(self, x, keys):
        for key in keys:
            optimizer = self.optims[key]
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16):
                loss = self.critics[key](x).mean()
            self.scaler.scale(loss).backward()
            self.scaler.step(optimizer)
        self.scaler.update()
""",
    "gradients that are copied to the weights of another optimizer": """
def fit(mirror):
    copied = torch.optim.SGD(mirror, lr=0.1)
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        for target, source in zip(mirror, model.parameters()):
            target.grad = source.grad.clone()
        copied.step()
        optimizer.step()
""",
    "the gradients of the last layer are cancelled at first": """
class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 4)
    def forward(self, x):
        return self.last(self.first(x))
    def cancel(self, epoch):
        if epoch >= 1:
            return
        for param in self.last.parameters():
            param.grad = None
head = Head()
opt = torch.optim.SGD(head.parameters(), lr=0.1)
for epoch in range(9):
    for x, y in loader:
        F.cross_entropy(head(x), y).backward()
        head.cancel(epoch)
        opt.step()
        opt.zero_grad()
""",
    "a schedule of something else": """
from torch.optim.lr_scheduler import StepLR
def fit(scheduler, rates):
    for x, y in loader:
        epsilon = scheduler.step()
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
""",
    "a schedule that counts the episodes that end in a batch": """
rates = torch.optim.lr_scheduler.StepLR(optimizer, 9)
for x, y, ended in loader:
    for i in ended:
        rates.step()
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
""",
    "a schedule of all updates beside a loop of its own for the critic": """
rates = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, len(loader) * epochs)
critic = nn.Linear(4, 1)
opt = torch.optim.SGD(critic.parameters(), lr=0.1)
for epoch in range(epochs):
    for x, y in loader:
        for _ in range(5):
            opt.zero_grad()
            critic(model(x).detach()).mean().backward()
            opt.step()
        optimizer.zero_grad()
        critic(model(x)).mean().backward()
        optimizer.step()
        rates.step()
""",
    "bfloat16 where there is such a thing": """
for x, y in loader:
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16):
        loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
""",
    "two terms that are added up in one branch": """
class Loss:
    def __call__(self, out, y):
        return F.mse_loss(out, y), y
class Engine:
    def __init__(self, net, parts):
        self.net, self.parts, self.loss = net, parts, Loss()
        self.opt, self.scaler = torch.optim.SGD(net.parameters(), lr=0.1), torch.amp.GradScaler("cuda", enabled=False)
    def fit(self):
        for self.batch in loader:
            self.update()
    def update(self):
        x, y = self.batch
        out = self.net(x)
        if self.parts == "distilled":
            total, items = self.loss(out, y)
        elif self.parts == "both":
            total, items = self.loss(out, y)
            more, others = self.loss(out, y)
            total += more
        else:
            total, items = self.loss(out, y)
        self.opt.zero_grad()
        self.scaler.scale(total).backward()
        self.scaler.step(self.opt)
        self.scaler.update()
""",
    "optimizers under names of a container that is not seen": """
from munch import Munch
class Solver(nn.Module):
    def __init__(self, nets):
        super().__init__()
        self.nets, self.optims = nets, Munch()
        for name in self.nets.keys():
            self.optims[name] = torch.optim.SGD(self.nets[name].parameters(), lr=0.1)
    def clear(self):
        for optim in self.optims.values():
            optim.zero_grad()
    def fit(self):
        nets, optims = self.nets, self.optims
        for x, y in loader:
            loss = F.mse_loss(nets.generator(x), y)
            self.clear()
            loss.backward()
            optims.generator.step()
            loss = nets.discriminator(x).mean()
            self.clear()
            loss.backward()
            optims.discriminator.step()
""",
}


@pytest.mark.parametrize("name", CASES)
def test_marked_lines_are_found_and_nothing_else(name, tmp_path):
    text = HEAD + CASES[name]
    assert findings(text, tmp_path) == expected(text)


def test_what_a_star_imports_is_followed(tmp_path):
    (tmp_path / "nets").mkdir()
    (tmp_path / "nets" / "__init__.py").write_text("from .tools import *\n")
    (tmp_path / "nets" / "tools.py").write_text("def ready(net):\n    return net.train()\n")
    text = "from nets import *\n" + HEAD + "for x, y in loader:\n    ready(model)\n"
    text += "    loss = F.cross_entropy(model(x), y)\n" + STEP
    assert findings(text, tmp_path) == set()
    text = text.replace("    optimizer.zero_grad()\n", "")
    assert findings(text, tmp_path) == {(text.count("\n"), "GL305")}
