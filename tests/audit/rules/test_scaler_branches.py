"""Steps through a scaler and past it, on different branches and with scalers that a flag enables."""

from __future__ import annotations

import pytest
from audited_snippets import assert_faults

RUNNER = """
class Runner:
    def __init__(self, net, scaler=None):
        self.net, self.scaler = net, scaler
    def run(self, x, y):
        loss = F.cross_entropy(self.net(x), y)
        self.scaler.scale(loss).backward()
class Trainer:
    def __init__(self, runner: Runner, opt: torch.optim.Optimizer):
        self.runner, self.opt = runner, opt
    def train_step(self, x, y):
        self.runner.run(x, y)
"""
BY_HAND = """
def clip(net, most):
    for p in net.parameters():
        factor = most / (p.grad.data.norm() + 1e-6)
        {bounded}
def train(net, scaler):
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.cross_entropy(net(x), y)
        scaler.scale(loss).backward()
        clip(net, 3.0)  {mark}
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
"""
CASES = {
    "204 different flags": """
def train(net, opt, scaler, args):
    for x, y in loader:
        opt.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.cross_entropy(net(x), y)
        scaler.scale(loss).backward()
        if args.clip:
            scaler.unscale_(opt)
            torch.nn.utils.clip_grad_norm_(net.parameters(), args.clip)
            opt.step()  # expect: GL204
        else:
            scaler.step(opt)
        scaler.update()
""",
    "204 last batch branch": """
def train(net, opt, scaler, n):
    for i, (x, y) in enumerate(loader):
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.cross_entropy(net(x), y) / n
        scaler.scale(loss).backward()
        if (i + 1) % n == 0:
            opt.step()  # expect: GL204
            opt.zero_grad()
        elif i + 1 == len(loader):
            scaler.step(opt)
            scaler.update()
            opt.zero_grad()
""",
    "101 amp, scaler None test mixed": """
def train(net, opt, scaler, use_amp):
    for x, y in loader:
        opt.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16, enabled=use_amp):
            loss = F.cross_entropy(net(x), y)
        if use_amp:
            scaler.scale(loss).backward()
        else:
            loss.backward()
        if scaler is None:
            opt.step()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)  # expect: GL101
        else:
            scaler.unscale_(opt)
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            scaler.step(opt)
            scaler.update()
""",
    "204 gan": """
def train(g, d, og, od, scaler, args):
    for x, y in loader:
        od.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            ld = d(x).mean()
        scaler.scale(ld).backward()
        od.step()  # expect: GL204
        if args.extra:
            scaler.step(od)
        og.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            lg = d(g(x)).mean()
        scaler.scale(lg).backward()
        scaler.step(og)
        scaler.update()
""",
    "step past a scaler with unscale and clip": """
scaler = torch.cuda.amp.GradScaler(enabled=True)
for x, y in loader:
    with torch.autocast("cuda"):
        loss = F.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()  # expect: GL204
    scaler.update()
    optimizer.zero_grad()
""",
    "swin": """
def train(net, opt, scaler, args):
    opt.zero_grad()
    for i, (x, y) in enumerate(loader):
        with torch.autocast("cuda"):
            loss = F.cross_entropy(net(x), y)
        if args.n > 1:
            loss = loss / args.n
            scaler.scale(loss).backward()
            if (i + 1) % args.n == 0:
                opt.step()  # expect: GL204
                opt.zero_grad()
                scaler.update()
        else:
            opt.zero_grad()
            scaler.scale(loss).backward()
            opt.step()  # expect: GL204
            scaler.update()
""",
    "enabled by a device check": """
def main(args, device):
    cuda = device.type != "cpu"
    scaler = torch.cuda.amp.GradScaler(enabled=cuda)
    for i, (x, y) in enumerate(loader):
        with torch.autocast("cuda", enabled=cuda):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=10.0)
        optimizer.step()  # expect: GL204
        scaler.update()
        optimizer.zero_grad()
""",
    "a helper makes the scaler": """
def amp_scaler(enabled):
    if hasattr(torch.amp, "GradScaler"):
        return torch.amp.GradScaler("cuda", enabled=enabled)
    return torch.cuda.amp.GradScaler(enabled=enabled)
def main(args, device):
    scaler = amp_scaler(args.amp)
    for i, (x, y) in enumerate(loader):
        with torch.autocast("cuda", enabled=args.amp):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        optimizer.step()  # expect: GL204
        scaler.update()
        optimizer.zero_grad()
""",
    "optimizer by a helper of the project": """
def make(net, name):
    g = [], [], []
    if name == "Adam":
        opt = torch.optim.Adam(g[2], lr=0.1)
    elif name == "SGD":
        opt = torch.optim.SGD(g[2], lr=0.1)
    else:
        raise NotImplementedError(name)
    opt.add_param_group({"params": g[0]})
    return opt
def main(args):
    opt = make(model, args.name)
    scaler = torch.cuda.amp.GradScaler()
    for i, (x, y) in enumerate(loader):
        with torch.autocast("cuda"):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        opt.step()  # expect: GL204
        scaler.update()
        opt.zero_grad()
""",
    "enabled by the negation of a flag": """
def main(args, device):
    scaler = torch.cuda.amp.GradScaler(enabled=not args.fp32)
    for i, (x, y) in enumerate(loader):
        with torch.autocast("cuda"):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        optimizer.step()  # expect: GL204
        scaler.update()
        optimizer.zero_grad()
""",
    "a helper with a return on one branch": """
def norm_of(params):
    total = 0.0
    for p in params:
        total += p.grad.norm() ** 2
    return total
def train(net, opt, scaler, args):
    for x, y in loader:
        opt.zero_grad()
        with torch.autocast("cuda"):
            loss = F.cross_entropy(net(x), y)
        scaler.scale(loss).backward()
        if args.clip:
            scaler.unscale_(opt)
            norm = torch.nn.utils.clip_grad_norm_(net.parameters(), args.clip)
        else:
            norm = norm_of(net.parameters())
        opt.step()  # expect: GL204
        scaler.update()
""",
    "a helper with a return on one branch, clip after": """
def norm_of(params):
    total = 0.0
    for p in params:
        if p.grad is None:
            continue
        total += p.grad.norm() ** 2
    return total
def train(net, opt, args):
    for x, y in loader:
        opt.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        if args.log:
            norm = norm_of(net.parameters())
        opt.step()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)  # expect: GL101
""",
    "204 no step past a scaler that another object has": RUNNER
    + """\
        if self.runner.scaler is not None:
            self.runner.scaler.step(self.opt)
            self.runner.scaler.update()
        else:
            self.opt.step()
        self.opt.zero_grad()
def fit(runner: Runner, opt):
    trainer = Trainer(runner, opt)
    for x, y in loader:
        trainer.train_step(x, y)
""",
    "204 a step past a scaler that another object has": RUNNER
    + """\
        if self.fast:
            self.runner.scaler.step(self.opt)
            self.runner.scaler.update()
        else:
            self.opt.step()  # expect: GL204
        self.opt.zero_grad()
def fit(runner: Runner, opt):
    trainer = Trainer(runner, opt)
    for x, y in loader:
        trainer.train_step(x, y)
""",
    "unscaled for the clip, and again for the log": """
scaler = torch.amp.GradScaler("cuda")
def run(clip, log):
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.float16):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        if clip and clip > 0:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        if log:
            scaler.unscale_(optimizer)  # expect: GL202
            print(nn.utils.get_total_norm([p.grad for p in model.parameters()]))
        scaler.step(optimizer)
        scaler.update()
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.float16):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        if clip:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        if log:
            if not clip:
                scaler.unscale_(optimizer)
            print(nn.utils.get_total_norm([p.grad for p in model.parameters()]))
        scaler.step(optimizer)
        scaler.update()
""",
}


@pytest.mark.parametrize("name", CASES)
def test_marked_lines_are_found_and_no_other_fault(name, tmp_path):
    assert_faults(CASES[name], tmp_path)


def test_gradients_may_be_clipped_by_hand(tmp_path):
    clipped = "if factor < 1: p.grad.data.mul_(factor)"
    assert_faults(BY_HAND.format(bounded=clipped, mark="# expect: GL201"), tmp_path)
    assert_faults(
        BY_HAND.format(bounded="p.grad.data.mul_(factor)", mark=""), tmp_path
    )  # to one norm, whatever the scale


WINDOW = """
def train(args):
    scaler = torch.amp.GradScaler("cuda", enabled=args.amp)
    for i, (x, y) in enumerate(loader):
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.cross_entropy(model(x), y)
        if args.n > 1:
            loss = loss / args.n
        if args.amp:
            scaler.scale(loss).backward()
        else:
            loss.backward()
        {body}
"""
DUE = "if (i + 1) % args.n == 0:\n            scaler.step(optimizer)\n            {}optimizer.zero_grad()"
EARLY = "if (i + 1) % args.n:\n            {}continue\n        scaler.step(optimizer)\n        scaler.update()"
BODIES = {
    "behind the window": DUE.format("") + "\n        scaler.update()  # expect: GL213",
    "in it": DUE.format("scaler.update()\n            "),
    "before the next": EARLY.format("scaler.update()  # expect: GL213\n            ")
    + "\n        optimizer.zero_grad()",
    "once": EARLY.format("") + "\n        optimizer.zero_grad()",
}


@pytest.mark.parametrize("name", BODIES)
def test_the_scale_changes_once_a_window(name, tmp_path):
    assert_faults(WINDOW.format(body=BODIES[name]), tmp_path)
