"""What is not PyTorch's own: optimizers, networks and tensors of a project or of another library."""

from __future__ import annotations

import pytest
from audited_snippets import HEAD, expected, findings

CASES = {
    "a network with its own zero_grad": """
class Stack(nn.Module):
    def __init__(self, parts, optimizer):
        super().__init__()
        self.parts = nn.ModuleList()
        for part in parts:
            self.parts.append(part)
        self.optimizer = optimizer
    def zero_grad(self):
        for part in self.parts:
            part.zero_grad()
    def fit(self, batches):
        for x, y in batches:
            self.zero_grad()
            F.cross_entropy(self(x), y).backward()
            self.optimizer.step()
    def grow(self, batches):
        for x, y in batches:
            F.cross_entropy(self(x), y).backward()
            self.optimizer.step()  # expect: GL305
""",
    "an optimizer of the project": """
class Descent:
    def __init__(self, weights, rate=0.1):
        self.weights, self.rate = weights, rate
    def zero_grad(self):
        for weight in self.weights:
            weight.grad.fill(0.0)
    def step(self):
        for weight in self.weights:
            weight.data -= self.rate * weight.grad
def fit(net, batches):
    mine = Descent(net.parameters())
    for x, y in batches:
        mine.zero_grad()
        F.cross_entropy(net(x), y).backward()
        mine.step()
def grow(net, batches):
    mine = Descent(net.parameters())
    for x, y in batches:
        F.cross_entropy(net(x), y).backward()
        mine.step()  # expect: GL305
""",
    "tensors of another library": """
import engine
def fit(xs, ys):
    w, b = engine.Tensor(xs[0], grad=True), engine.Tensor(0, grad=True)
    for x, y in zip(xs, ys):
        engine.square(x * w + b - y).backward()
        w.data -= 0.1 * w.grad
        b.data -= 0.1 * b.grad
def pair(xs, ys):
    w, b = engine.start(xs)
    for x, y in zip(xs, ys):
        engine.square(x * w + b - y).backward()
        w.data -= 0.1 * w.grad
        b.data -= 0.1 * b.grad
def grow(xs, ys):
    w = torch.randn(4, requires_grad=True)
    for x, y in zip(xs, ys):
        (x * w - y).square().mean().backward()
        w.data -= 0.1 * w.grad  # expect: GL305
""",
    "tensors of a class of the project": """
class Number:
    def __init__(self, data):
        self.data, self.grad = data, 0.0
    def __mul__(self, other):
        return Number(self.data * other)
    def backward(self):
        self.grad = 1.0
def fit(xs):
    w = Number(1.0)
    for x in xs:
        loss = w * x
        loss.backward()
        w.data -= 0.1 * w.grad
""",
    "losses in a dictionary of unknown making": """
def fit(net, optimizer, batches, compute, count):
    for i, (x, y) in enumerate(batches):
        outputs, losses = compute(net(x), y)
        losses["loss"] = losses["loss"] / count
        losses["loss"].backward()
        if (i + 1) % count == 0:  # expect: GL307
            optimizer.step()
            optimizer.zero_grad()
def less(net, optimizer, batches, compute, count):
    for i, (x, y) in enumerate(batches):
        outputs, losses = compute(net(x), y)
        losses["loss"] /= count
        losses["loss"].backward()
        if (i + 1) % count == 0:  # expect: GL307
            optimizer.step()
            optimizer.zero_grad()
def whole(net, optimizer, batches, compute, count, scaler):
    for i, (x, y) in enumerate(batches):
        outputs, losses = compute(net(x), y)
        losses["loss"] = losses["loss"] / count
        scaler.scale(losses["loss"]).backward()
        if (i + 1) % count == 0:  # expect: GL307
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
def grow(net, optimizer, batches, compute, count):
    for i, (x, y) in enumerate(batches):
        outputs, losses = compute(net(x), y)
        losses["loss"].backward()  # expect: GL301
        if (i + 1) % count == 0:  # expect: GL307
            optimizer.step()
            optimizer.zero_grad()
""",
    "losses that a network returns in a dictionary": """
def fit(net, optimizer, batches, count):
    for i, batch in enumerate(batches):
        outputs = net(batch)
        outputs["loss"] = outputs["loss"] / count
        outputs["loss"].backward()
        if (i + 1) % count == 0:  # expect: GL307
            optimizer.step()
            optimizer.zero_grad()
def grow(net, optimizer, batches, count):
    for i, batch in enumerate(batches):
        outputs = net(batch)
        outputs["loss"].backward()  # expect: GL301
        if (i + 1) % count == 0:  # expect: GL307
            optimizer.step()
            optimizer.zero_grad()
""",
    "losses in a dictionary of the loop": """
def fit(net, optimizer, batches, count):
    for i, (x, y) in enumerate(batches):
        losses = {}
        losses["one"] = F.cross_entropy(net(x), y)
        losses["one"] = losses["one"] / count
        losses["one"].backward()
        if (i + 1) % count == 0:  # expect: GL307
            optimizer.step()
            optimizer.zero_grad()
def grow(net, optimizer, batches, count):
    for i, (x, y) in enumerate(batches):
        losses = {}
        losses["one"] = F.cross_entropy(net(x), y)
        losses["one"].backward()  # expect: GL301
        if (i + 1) % count == 0:  # expect: GL307
            optimizer.step()
            optimizer.zero_grad()
""",
    "gradients of a list's weights": """
def sgd(params, lr):
    for param in params:
        param.data -= lr * param.grad
def fit(net, batches, params=None, optimizer=None):
    for x, y in batches:
        loss = F.cross_entropy(net(x), y)
        if optimizer is not None:
            optimizer.zero_grad()
        elif params[0].grad is not None:
            for param in params:
                param.grad.data.zero_()
        loss.backward()
        if optimizer is None:
            sgd(params, 0.1)
        else:
            optimizer.step()
""",
    "a learner that calls its callbacks": """
def one_batch(self, x, y):
    with torch.autocast("cuda"):
        loss = F.cross_entropy(self.model(x), y)
    self.scaler.scale(loss).backward()
    self.scaler.step(self.opt)
    self("after_step")
    self.opt.zero_grad()
""",
    "a scaler that another method updates": """
class Agent:
    def __init__(self, net):
        self.net = net
        self.opt = torch.optim.Adam(net.parameters())
        self.scaler = torch.amp.GradScaler("cuda")
    def update(self, x, y):
        with torch.autocast("cuda"):
            loss = F.cross_entropy(self.net(x), y)
        self.opt.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.opt)
    def finish(self):
        self.scaler.update()
""",
    "assigned gradients": """
def give(params, grads):
    for p, g in zip(params, grads):
        p.grad = g
def update(net, inner, opt, inner_opt, x, y):
    inner_opt.zero_grad()
    give(list(inner.parameters()), torch.autograd.grad(F.mse_loss(inner(x), y), list(inner.parameters())))
    inner_opt.step()
    opt.zero_grad()
    (F.mse_loss(net(x), y) - F.mse_loss(inner(x), y)).backward()
    opt.step()
def fit(net, inner, batches):
    opt, inner_opt = torch.optim.Adam(net.parameters()), torch.optim.Adam(inner.parameters())
    for x, y in batches:
        update(net, inner, opt, inner_opt, x, y)
""",
    "an entry of a network's result that is a count": """
def fit(net, opt, batches):
    for batch in batches:
        opt.zero_grad()
        out = net(batch)
        loss = out["loss"] / out["n_items"]
        loss.backward()
        opt.step()
""",
    "sums, and a rate divided by the samples of an update": """
def fit(net, criterion, config, batches):
    opt = torch.optim.Adam(net.parameters(), lr=config.rate / config.batch)
    for i, (x, y) in enumerate(batches):
        criterion(net(x), y).backward()
        if (i + 1) % config.subdivisions == 0:  # expect: GL307
            opt.step()
            opt.zero_grad()
""",
    "a schedule with a period of its own": """
def fit(net, opt, schedule, batches, n, m):
    opt.zero_grad()
    for i, (x, y) in enumerate(batches):
        if i % m == 0:
            schedule.step()
        (F.cross_entropy(net(x), y) / n).backward()
        if (i + 1) % n == 0:  # expect: GL307
            opt.step()
            opt.zero_grad()
""",
    "gradients of a bad batch": """
def fit(net, opt, batches):
    for x, y in batches:
        opt.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        if acceptable(loss):
            opt.zero_grad()
        opt.step()
""",
    "an update that depends on the device": """
import elsewhere
def update(net, opt, x, y):
    out = net(x)
    if out.device.type == "other":
        F.cross_entropy(out, y).backward()
        opt.step()
        opt.zero_grad()
        return
    for p in net.parameters():
        p.grad = None
    F.cross_entropy(out, y).backward()
    elsewhere.descend(net)
""",
    "counts and detached losses": """
def fit(net, opt, batches):
    total, count = 0.0, 0
    for x, y in batches:
        opt.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        opt.step()
        count += torch.numel(loss)
        loss.detach_()
        total = total + loss
""",
    "engines that are given the loss": """
from elsewhere import Engine, Booster
def divided(batches, n):
    engine = Engine(model)
    for i, (x, y) in enumerate(batches):
        loss = engine(x, y).loss / n
        engine.backward(loss)
        if (i + 1) % n == 0:
            optimizer.step()
            optimizer.zero_grad()
def scaled(batches, n):
    booster = Booster(stage=2)
    for i, (x, y) in enumerate(batches):
        booster.backward(loss=F.cross_entropy(model(x), y) / n, optimizer=optimizer)  # expect: GL308
        if (i + 1) % n == 0 or i + 1 == len(batches):
            optimizer.step()
            optimizer.zero_grad()
def undivided(batches, n):
    booster = Booster(stage=2)
    for i, (x, y) in enumerate(batches):
        booster.backward(F.cross_entropy(model(x), y), optimizer)  # expect: GL301
        if (i + 1) % n == 0 or i + 1 == len(batches):
            optimizer.step()
            optimizer.zero_grad()
def with_a_gradient(batches):
    for x, y in batches:
        out = model(x)
        out.backward(torch.ones_like(out))
        optimizer.step()  # expect: GL305
""",
}


@pytest.mark.parametrize("name", CASES)
def test_marked_lines_are_found_and_nothing_else(name, tmp_path):
    text = HEAD + CASES[name]
    assert findings(text, tmp_path) == expected(text)
