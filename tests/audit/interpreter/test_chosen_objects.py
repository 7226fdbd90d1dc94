"""Optimizers, schedules and scalers that are chosen, kept by key, or beside an average of the weights."""

from __future__ import annotations

import pytest
from audited_snippets import assert_faults

CASES = {
    "native scaler class, a clip on one branch without unscale": """
class NativeScaler:
    def __init__(self):
        self._scaler = torch.cuda.amp.GradScaler()
    def __call__(self, loss, optimizer, clip_grad=None, parameters=None, update_grad=True):
        self._scaler.scale(loss).backward()
        if update_grad:
            if clip_grad is not None:
                norm = torch.nn.utils.clip_grad_norm_(parameters, clip_grad)  # expect: GL201
            else:
                self._scaler.unscale_(optimizer)
                norm = None
            self._scaler.step(optimizer)
            self._scaler.update()
        return norm
""",
    "averaged weights": """
def train(net, opt, EMAModel):
    from diffusers.training_utils import EMAModel
    ema = EMAModel(net.parameters())
    for x, y in loader:
        F.cross_entropy(net(x), y).backward()
        opt.step()  # expect: GL305
        ema.step(net.parameters())
        ema.store(net.parameters())
        ema.copy_to(net.parameters())
        ema.restore(net.parameters())
""",
    "averaged weights from outside": """
def train(net, opt, ema_model):
    for x, y in loader:
        F.cross_entropy(net(x), y).backward()
        opt.step()  # expect: GL305
        ema_model.step(net.parameters())
""",
    "a wrapper that steps by keys": """
class MultiOptimizer:
    def __init__(self, optimizers={}, schedulers={}):
        self.optimizers = optimizers
        self.schedulers = schedulers
        self.keys = list(optimizers.keys())
        self.param_groups = [o.param_groups for o in self.optimizers.values()]
    def step(self, key=None, scaler=None):
        keys = [key] if key is not None else self.keys
        _ = [self._step(key, scaler) for key in keys]
    def _step(self, key, scaler=None):
        if scaler is not None:
            scaler.step(self.optimizers[key])
            scaler.update()
        else:
            self.optimizers[key].step()
    def zero_grad(self, key=None):
        if key is not None:
            self.optimizers[key].zero_grad()
        else:
            _ = [self.optimizers[key].zero_grad() for key in self.keys]
def build(parameters):
    optim = dict([(key, torch.optim.AdamW(params, lr=1e-3)) for key, params in parameters.items()])
    return MultiOptimizer(optim, None)
def train(nets):
    opt = build({key: net.parameters() for key, net in nets.items()})
    for x, y in loader:
        loss = F.cross_entropy(nets["a"](x), y)
        loss.backward()
        opt.zero_grad()  # expect: GL103
        opt.step("a")
""",
    "a wrapper that steps by keys, right": """
class MultiOptimizer:
    def __init__(self, optimizers={}):
        self.optimizers = optimizers
        self.keys = list(optimizers.keys())
    def step(self, key=None):
        keys = [key] if key is not None else self.keys
        _ = [self._step(key) for key in keys]
    def _step(self, key):
        self.optimizers[key].step()
    def zero_grad(self, key=None):
        if key is not None:
            self.optimizers[key].zero_grad()
        else:
            _ = [self.optimizers[key].zero_grad() for key in self.keys]
def build(parameters):
    optim = dict([(key, torch.optim.AdamW(params, lr=1e-3)) for key, params in parameters.items()])
    return MultiOptimizer(optim)
def train(nets):
    opt = build({key: net.parameters() for key, net in nets.items()})
    for x, y in loader:
        opt.zero_grad()
        loss = F.cross_entropy(nets["a"](x), y)
        loss.backward()
        opt.step("a")
        opt.step("b")
""",
    "optimizer chosen by two ifs": """
def train(net, args, dl):
    if args.optimizer.lower() == "adamw":
        if args.use_8bit:
            import bitsandbytes as bnb
            cls = bnb.optim.AdamW8bit
        else:
            cls = torch.optim.AdamW
        opt = cls(net.parameters(), lr=1e-3)
    if args.optimizer.lower() == "prodigy":
        import prodigyopt
        cls = prodigyopt.Prodigy
        opt = cls(net.parameters(), lr=1.0)
    for x, y in dl:
        F.cross_entropy(net(x), y).backward()
        opt.step()  # expect: GL305
""",
    "optimizer chosen by elif": """
def train(net, args, dl):
    if args.opt == "sgd":
        opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    elif args.opt == "adam":
        opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    else:
        raise ValueError(args.opt)
    for x, y in dl:
        F.cross_entropy(net(x), y).backward()
        opt.step()  # expect: GL305
""",
    "accelerate schedule inside accumulate": """
from accelerate import Accelerator
def train(net, args, dl):
    accelerator = Accelerator(gradient_accumulation_steps=args.n)
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    sch = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 10)
    net, opt, dl, sch = accelerator.prepare(net, opt, dl, sch)
    for x, y in dl:
        with accelerator.accumulate(net):
            accelerator.backward(F.cross_entropy(net(x), y))
            sch.step()  # expect: GL402
            opt.step()
            opt.zero_grad()
""",
    "zero_grad in a method of the class, two optimizers, missing": """
class Gan:
    def __init__(self, g, d):
        self.g, self.d = g, d
        self.og = torch.optim.Adam(g.parameters())
        self.od = torch.optim.Adam(d.parameters())
    def optimize_parameters(self, x):
        for p in self.d.parameters():
            p.requires_grad = False
        lg = F.softplus(-self.d(self.g(x))).mean()
        lg.backward()
        self.og.step()  # expect: GL305
        for p in self.d.parameters():
            p.requires_grad = True
        ld = F.softplus(self.d(self.g(x).detach())).mean()
        ld.backward()
        self.od.step()  # expect: GL305
def main():
    gan = Gan(model, model)
    for x, y in loader:
        gan.optimize_parameters(x)
""",
    "loss from a call of an attribute": """
class T:
    def __init__(self, net, opt, n):
        self.net, self.opt, self.n = net, opt, n
    def fit(self, dl):
        for i, batch in enumerate(dl):
            out = self.net(**batch)
            loss = out.loss
            loss.backward()  # expect: GL301
            if (i + 1) % self.n == 0:
                self.opt.step()
                self.opt.zero_grad()
""",
    "loss is a sum of a dict of the model": """
def fit(net, opt, dl, n):
    for i, (x, y) in enumerate(dl):
        loss_dict = net(x, y)
        losses = sum(loss for loss in loss_dict.values())
        losses.backward()  # expect: GL301
        if (i + 1) % n == 0:
            opt.step()
            opt.zero_grad()
""",
    "loss weighted sum with lambdas": """
def fit(net, opt, dl, n, lam):
    ce = nn.CrossEntropyLoss()
    for i, (x, y) in enumerate(dl):
        out = net(x)
        loss = ce(out, y) + lam * out.pow(2).mean()
        loss.backward()  # expect: GL301
        if (i + 1) % n == 0:
            opt.step()
            opt.zero_grad()
""",
    "clip a given optimizer's groups after step": """
def fit(net, opt, dl):
    for x, y in dl:
        opt.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        opt.step()
        for group in opt.param_groups:
            torch.nn.utils.clip_grad_norm_(group["params"], 1.0)  # expect: GL101
""",
    "scaler in dict of state": """
def fit(state, dl):
    for x, y in dl:
        state["optimizer"].zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.cross_entropy(state["model"](x), y)
        state["scaler"].scale(loss).backward()
        torch.nn.utils.clip_grad_norm_(state["model"].parameters(), 1.0)  # expect: GL201
        state["scaler"].step(state["optimizer"])
        state["scaler"].update()
""",
    "optimizers and networks in dictionaries, made by what is not seen": """
import zoo
class Trainer:
    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer
    def fit(self, loader):
        for x, y in loader:
            loss = F.mse_loss(self.model["generator"](x), y)
            self.optimizer["generator"].zero_grad()
            nn.utils.clip_grad_norm_(self.model["generator"].parameters(), 1.0)  # expect: GL102
            loss.backward()
            self.optimizer["generator"].step()
            loss = F.mse_loss(self.model["critic"](x), y)
            loss.backward()
            self.optimizer["critic"].step()  # expect: GL305
def main(config):
    made = {"generator": getattr(zoo, config["g"])(), "critic": getattr(zoo, config["d"])()}
    kinds = getattr(zoo, config["kind"])
    steps = {"generator": kinds(made["generator"].parameters()), "critic": kinds(made["critic"].parameters())}
    Trainer(made, steps).fit(loader)
if __name__ == "__main__":
    main({})
""",
    "two optimizers that one function makes": """
def make(weights, name):
    kind = torch.optim.Adam if name == "adam" else torch.optim.SGD
    return kind(weights, lr=0.1)
def fit(name):
    one, two = make(model[0].parameters(), name), make(model[2].parameters(), name)
    for x, y in loader:
        one.zero_grad()
        F.cross_entropy(model(x), y).backward()
        one.step()
        two.step()  # expect: GL305
fit("adam")
""",
    "networks from a table": """
class Small(nn.Linear):
    pass
class Large(nn.Linear):
    pass
TABLE = {"small": Small, "large": Large}
def fit(name):
    net, judge = TABLE[name](8, 4), TABLE[name](4, 1)
    first, second = torch.optim.SGD(net.parameters(), lr=0.1), torch.optim.SGD(judge.parameters(), lr=0.1)
    for x, y in loader:
        first.zero_grad()
        judge(net(x)).mean().backward()
        nn.utils.clip_grad_norm_(judge.parameters(), 1.0)  # expect: GL705
        first.step()
        second.zero_grad()
        judge(net(x).detach()).mean().backward()
        second.step()
""",
    "a setting that another file's text may change": """
kind = "bfloat16"
exec(open("configured.py").read())
scaler = torch.amp.GradScaler("cuda", enabled=(kind == "float16"))
for x, y in loader:
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = F.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # expect: GL201
    scaler.step(optimizer)
    scaler.update()
""",
}

CASES["a context of a package, or one that does nothing"] = """
from contextlib import suppress
from functools import partial
from torch.nn.parallel import DistributedDataParallel as DDP
def train(args):
    amp = suppress
    if args.amp:
        amp = partial(torch.autocast, device_type="cuda", dtype=torch.bfloat16)
    net = DDP(model)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for i, (x, y) in enumerate(loader):
        with amp():
            loss = F.cross_entropy(net(x), y) / 4
        loss.backward()  # expect: GL501
        if i % 4 == 3 or i + 1 == len(loader):
            opt.step()
            opt.zero_grad()
"""

CHOSEN = """
from munch import Munch
from torch import optim
from torch.optim import lr_scheduler
OPTIMIZERS = {{"adam": optim.Adam, "sgd": lambda params, lr: optim.SGD(params, lr, 0.9)}}
SCHEDULES = {{"cosine": lr_scheduler.CosineAnnealingLR, "polynomial": lr_scheduler.PolynomialLR}}
LOSSES = {{"plain": nn.CrossEntropyLoss, "weighted": nn.CrossEntropyLoss}}
def schedule_of(name, opt, length):
    if name == "cosine":
        return lr_scheduler.CosineAnnealingLR(opt, length)  # each
    return lr_scheduler.StepLR(opt, 30)
def train(args):
    nets = Munch(net=nn.Linear(8, 4), other=nn.Linear(8, 4))
    opt = {opt}
    schedule = {schedule}
    criterion = LOSSES[args.loss]()
    for epoch in range(args.epochs):
        for x, y in loader:
            opt.zero_grad()
            criterion({out}, y).backward()
            opt.step(){each}
        {after}
"""
RIGHT = {
    "opt": "OPTIMIZERS[args.optimizer](nets.net.parameters(), lr=0.1)",
    "schedule": "SCHEDULES[args.schedule](opt, args.epochs)",
    "out": "nets.net(x)",
    "each": "",
    "after": "schedule.step()",
}
STEPS = {"each": "; schedule.step()", "after": "pass"}
CASES |= {
    f"by a word of the configuration, {name}": CHOSEN.format(**{**RIGHT, **changed})
    for name, changed in {
        "right": {},
        "a class of the other network": {
            "opt": "OPTIMIZERS[args.optimizer](nets.other.parameters(), lr=0.1)",
            "each": "  # expect: GL701",
        },
        "an attribute of the package, of the other network": {
            "opt": "getattr(optim, args.optimizer)(nets.other.parameters(), lr=0.1)",
            "each": "  # expect: GL701",
        },
        "a schedule per epoch that is stepped more often": {
            **STEPS,
            "schedule": RIGHT["schedule"] + "  # expect: GL405",
        },
        "a schedule of a function, where it ends": {**STEPS, "schedule": "schedule_of(args.schedule, opt, 40)"},
        "a loss function": {"out": "nets.net(x).softmax(-1)"},
    }.items()
}
CASES["by a word of the configuration, a loss function"] = CASES[
    "by a word of the configuration, a loss function"
].replace(", y).backward()", ", y).backward()  # expect: GL609")
CASES["by a word of the configuration, in a function"] = CHOSEN.format(
    **{**RIGHT, **STEPS, "schedule": "schedule_of(args.schedule, opt, args.epochs)"}
).replace("# each", "# expect: GL405")


@pytest.mark.parametrize("name", CASES)
def test_marked_lines_are_found_and_no_other_fault(name, tmp_path):
    assert_faults(CASES[name], tmp_path)
