"""Where a log, a root, a quotient or an exp() may become non-finite, in a loop and in what it calls."""

from __future__ import annotations

import pytest
from audited_snippets import STEP, assert_marked

CASES = {
    "a root of squares that are added up": """
for x, y in loader:
    out = model(x)
    size = torch.sqrt(out[:, 0] ** 2 + out[:, 1].pow(2))  # expect: GL603
    safe = (out[:, 0] ** 2 + out[:, 1] ** 2 + 1e-8).sqrt() + (out[:, 0] ** 2 + y).sqrt()
    loss = (size + safe).mean()
"""
    + STEP,
    "a target's logarithm is no prediction's": """
def poisson_loss(prediction, target):
    stirling = target * torch.log(target) - target
    return (prediction.exp() - target * prediction + stirling).mean()
def plain_loss(prediction, target):
    return -(target * torch.log(prediction)).mean()  # expect: GL601
""",
    "logs of a softmax in a list": """
for x, y in loader:
    kept, terms, safe = [], [], []
    for part in x:
        kept.append(torch.log(F.softmax(model(part), 0)[0]))  # expect: GL601
        safe.append(F.log_softmax(model(part), 0)[0])
    for one, gain in zip(kept, y):
        terms.append(-one * gain)
    loss = torch.stack(terms).sum() - torch.stack(safe).sum()
"""
    + STEP,
    "log of a quotient of squares, as of a signal through its error": """
for x, y in loader:
    out = model(x)
    scale = torch.sum(out * y, -1, keepdim=True) / (torch.sum(y**2, -1, keepdim=True) + 1e-8)
    signal = torch.sum((scale * y) ** 2, dim=-1)
    error = torch.sum((out - scale * y) ** 2, dim=-1) + 1e-8
    ratio = signal / error
    loss = -torch.log10(ratio).mean()  # expect: GL601
    loss = loss - torch.log10(ratio + 1e-8).mean() - torch.log10((signal + 1e-8) / error).mean()
"""
    + STEP,
    "log of the output of a network that ends in a sigmoid": """
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
    "log of a class's forward pass that ends in a softmax": """
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
    "a log that no loss uses": """
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
    "division by one of the outputs of an unseen network": """
from elsewhere import Eyes
eyes = Eyes()
opt = torch.optim.SGD(eyes.parameters(), lr=0.1)
class Relative(nn.Module):
    def forward(self, found, given, where):
        mine, other = found[where], given[where]
        return ((mine - other).abs() / mine).mean()  # expect: GL602
measure = Relative()
for x, y in loader:
    coarse, fine = eyes(x)
    loss = measure(fine, y, y > 0) + ((coarse - y) ** 2 / coarse).mean()  # expect: GL602
    opt.zero_grad()
    loss.backward()
    opt.step()
""",
    "division by an output that is a width, or by data, or by more than the output": """
from elsewhere import Eyes
eyes = Eyes()
opt = torch.optim.SGD(eyes.parameters(), lr=0.1)
for x, y in loader:
    middle, width = eyes(x)
    loss = ((middle - y) / width).pow(2).mean() + ((middle - y).abs() / y).mean()
    loss = loss + ((middle - y).abs() / (middle + y)).mean() + ((middle - y) / middle.clamp(min=0.1)).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
""",
    "division by the answer of a network without its graph": """
other = nn.Linear(8, 1)
for x, y in loader:
    optimizer.zero_grad()
    with torch.no_grad():
        scale = other(x)
    loss = (model(x) / scale).square().mean()
    loss.backward()
    optimizer.step()
""",
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
    "a softmax written out by hand": """
for x, y in loader:
    out = model(x)
    e = torch.exp(out)  # expect: GL604
    loss = F.nll_loss((e / e.sum(dim=1, keepdim=True) + 1e-8).log(), y)
"""
    + STEP,
    "a softmax written out by hand that subtracts the maximum first": """
for x, y in loader:
    out = model(x)
    e = torch.exp(out - out.max(dim=1, keepdim=True).values)
    loss = F.nll_loss((e / e.sum(dim=1, keepdim=True) + 1e-8).log(), y)
"""
    + STEP,
    "log of a softmax in a helper": """
def pair_loss(one, two, tau):
    shares = torch.softmax(one @ two.t() / tau, dim=-1)
    return -torch.log(shares).diag().mean()  # expect: GL601
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
    "deep stacks that saturate, assembled in other ways": """
DEPTH = 24
rows = []  # six of them
for _ in range(0, 24, 4):
    rows += [nn.Linear(8, 8), nn.Sigmoid()]
few = nn.Sequential(*rows)
rows = [nn.Linear(4, 8)]
for i in range(DEPTH):
    rows.append(nn.Linear(8, 8))
    rows.append(nn.Tanh())
net = nn.Sequential(*rows, nn.Linear(8, 2))  # expect: GL806
rows = [nn.Linear(8, 8), nn.ReLU()]
other = nn.Sequential(*rows)
each = nn.Sequential(*[nn.Sequential(nn.Linear(8, 8), nn.Sigmoid()) for _ in range(20)])  # expect: GL806
normed = nn.Sequential(*[nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Sigmoid()) for _ in range(20)])
linear = nn.Sequential(*[nn.Linear(8, 8) for _ in range(20)], nn.Sigmoid())
""",
    "deep stacks of blocks of the module": """
class Plain(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.ff, self.unused = nn.Linear(size, size), None
        self.act = nn.Sigmoid()
    def forward(self, x):
        return self.act(self.ff(x))
class Written(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.ff = nn.Linear(size, size)
    def forward(self, x):
        h = self.ff(x)
        return h.tanh()
class Added(Plain):
    def __init__(self, size):
        super().__init__(size)
        self.ff = nn.Linear(size, size)
        self.act = nn.Sigmoid()
    def forward(self, x):
        return x + self.act(self.ff(x))
class Kept(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.ff = nn.Linear(size, size)
        self.act = nn.Sigmoid()
    def forward(self, x):
        h = self.act(self.ff(x))
        return torch.cat([x, h])
class Eased(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.ff = nn.Linear(size, size)
        self.norm = nn.LayerNorm(size)
    def forward(self, x):
        return torch.tanh(self.norm(self.ff(x)))
def pair(size):
    return nn.Sequential(nn.Linear(size, size), nn.Tanh())
class Stack(nn.Module):
    def __init__(self, size=8, *, depth=8):
        super().__init__()
        self.depth = depth
        layers = [nn.Linear(4, size), nn.GELU()]
        for _ in range(depth):
            layers.append(Plain(size))
        self.one = nn.Sequential(*layers)  # expect: GL806
        self.two = nn.Sequential(*[Written(size) for _ in range(self.depth)])  # expect: GL806
        self.three = nn.Sequential(*(pair(size) for _ in range(depth)))  # expect: GL806
        self.added = nn.Sequential(*[Added(size) for _ in range(depth)])
        self.kept = nn.Sequential(*[Kept(size) for _ in range(depth)])
        self.eased = nn.Sequential(*[Eased(size) for _ in range(depth)])
        self.few = nn.Sequential(*[Plain(size) for _ in range(3)])
""",
    "a softmax written out": """
def my_loss(logits, y):
    share = logits.exp() / logits.exp().sum(1, keepdim=True)  # expect: GL604
    return -torch.log(share[range(len(y)), y]).mean()  # expect: GL601
""",
    "the length of a derivative": """
def penalty(x):
    slope = torch.autograd.grad(model(x).sum(), x, create_graph=True)[0]
    return (torch.sqrt(slope.pow(2).sum(1)) - 1).pow(2).mean()  # expect: GL603
def penalty_of_part(x):
    (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    length = torch.sum(slope.view(len(slope), -1) ** 2, dim=1) ** 0.5  # expect: GL603
    return ((length - 1) ** 2).mean()
for x, y in loader:
    x.requires_grad_(True)
    loss = F.cross_entropy(model(x), y) + 10 * penalty(x) + penalty_of_part(x)
"""
    + STEP,
    "the length of a derivative, kept away from 0, by norm(), or without a graph": """
for x, y in loader:
    x.requires_grad_(True)
    out = model(x)
    slope = torch.autograd.grad(out.sum(), x, create_graph=True)[0]
    loss = F.cross_entropy(out, y) + (torch.sqrt(slope.pow(2).sum(1) + 1e-12) - 1).pow(2).mean()
    loss = loss + (slope.norm(2, dim=1) - 1).pow(2).mean()  # its derivative at 0 is 0
    fixed = torch.autograd.grad(out.sum(), x, retain_graph=True)[0]
    loss = loss + (out * torch.sqrt(fixed.pow(2).sum(1, keepdim=True))).mean()
"""
    + STEP,
}


@pytest.mark.parametrize("name", CASES)
def test_marked_lines_are_found_and_nothing_else(name, tmp_path):
    assert_marked(CASES[name], tmp_path)
