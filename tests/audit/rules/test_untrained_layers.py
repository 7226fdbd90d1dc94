"""Networks and layers that a loss reaches by cut graphs alone, in the idioms of public scripts; each has its right twin."""

from __future__ import annotations

import pytest
from audited_snippets import assert_faults

VAE = """
class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.mean, self.spread = nn.Linear(8, 8), nn.Linear(8, 2), nn.Linear(8, 2)
        self.out = nn.Linear(2, 8)
    def encode(self, x):
        h = F.relu(self.body(x))
        return self.mean(h), self.spread(h)
    def sample(self, mean, spread):
        noise = torch.randn_like(spread)
        return mean + noise * torch.exp(0.5 * spread)
    def forward(self, x):
        mean, spread = self.encode(x)
        z = self.sample(mean, spread)
        return self.out(z), mean, spread
def score(made, x, mean, spread):
    first = F.mse_loss(made, x)
    second = -0.5 * torch.sum(1 + spread - mean.pow(2) - spread.exp())
    return first + second
net = VAE()
opt = torch.optim.Adam(net.parameters())
for x, _ in loader:
    made, mean, spread = net(x)
    loss = score(made, x, mean, spread)
    opt.zero_grad()
    loss.backward()
    opt.step()
"""
GAN = """
def train(first, second, batches, settings):
    criterion = nn.BCEWithLogitsLoss()
    one = torch.optim.Adam(first.parameters())
    two = torch.optim.Adam(second.parameters())
    for x, y in batches:
        made = first(torch.randn(4, 8))
        second.zero_grad()
        wrong = criterion(second(made.detach()), torch.zeros(4, 1))
        (criterion(second(x), torch.ones(4, 1)) + wrong).backward()
        two.step()
        first.zero_grad()
        answer = criterion(second(made), torch.ones(4, 1))
        answer.backward()
        one.step()
"""
HEADS = """
class Heads(nn.Module):
    def __init__(self, body: nn.Module):
        super().__init__()
        self.body, self.neck, self.one, self.two = body, nn.Linear(8, 8), nn.Linear(8, 4), nn.Linear(8, 4)
    def forward(self, x):
        h = torch.relu(self.neck(self.body(x)))
        return {"one": self.one(h), "two": self.two(h)}
def fit(body: nn.Module):
    net = Heads(body)
    opt = torch.optim.AdamW([{"params": net.neck.parameters()}, {"params": net.one.parameters()},
                             {"params": net.two.parameters()}])
    for x, y in loader:
        out = net(x)
        terms = [F.cross_entropy(out["one"], y), F.cross_entropy(out["two"], y)]
        loss = sum(terms)
        opt.zero_grad()
        loss.backward()
        opt.step()
"""
WHOLE = """
class Margin(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 8))
    def forward(self, z, y):
        return F.cross_entropy(F.linear(z, self.weight), y)
class Whole(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.margin = nn.Linear(8, 8), Margin()
        self.opt = torch.optim.Adam(self.parameters())
        print(sum(p.numel() for p in self.body.parameters()))
    def fit(self, loader):
        self.train()
        for x, y in loader:
            self.zero_grad()
            z = self.body.forward(x)
            self.margin(z, y).backward()
            self.opt.step()
    def check(self, x):
        self.eval()
        with torch.no_grad():
            return self.body.forward(x)
    def save(self, path):
        torch.save(self.state_dict(), path)
    def resume(self, path):
        own = self.state_dict()
        for name, one in torch.load(path).items():
            own[name].copy_(one)
"""
SAVES = "        torch.save(self.state_dict(), path)\n"
SETS_UP = "        print(sum"
FOUND = "  # expect: GL712"
CHANGES = {
    "a layer of a method": (VAE, "F.relu(self.body(x))", "F.relu(self.body(x)).detach()", FOUND),
    "the data of a layer's result": (VAE, "F.relu(self.body(x))", "F.relu(self.body(x).data)", FOUND),
    "one of several results": (VAE, "self.mean(h), self.spread(h)", "self.mean(h), self.spread(h).detach()", FOUND),
    "one of several results, in the loss": (VAE, "= score(made", "= score(made.detach()", FOUND),
    "the results that a term is made of": (VAE, "x, mean, spread)\n    opt", "x, mean.detach(), spread.detach())\n    opt", FOUND.replace("712", "615")),
    "a term": (VAE, "first + second", "first.detach() + second", f"{FOUND}, GL615"),
    "a sample": (VAE, "self.out(z)", "self.out(z.detach())", FOUND),
    "a sample where it is drawn": (VAE, "mean + noise * torch.exp(0.5 * spread)", "(mean + noise * torch.exp(0.5 * spread)).detach()", FOUND),
    "an entry of a result": (HEADS, 'out["two"]', 'out["two"].detach()', FOUND),
    "an entry where it is made": (HEADS, "self.two(h)}", "self.two(h).detach()}", FOUND),
    "a term that is only shown": (VAE, "first + second", "first + second + second.detach() - second.detach()", ""),
    "layers that another part of the result trains": (VAE, "return self.out(z), mean", "shown = self.out(z.detach())\n        return self.out(z), mean", ""),
    "a sample that is not for a gradient": (VAE, "mean + noise * torch.exp(0.5 * spread)", "(mean + noise * 0.1).detach()", ""),
    "handed-in networks, where the other one learns": (GAN, "answer = criterion(second(made)", "answer = criterion(second(made.detach())", FOUND),
    "the result of a part of what saves and resumes all of itself": (WHOLE, "self.body.forward(x)\n            self.m", "self.body.forward(x).detach()\n            self.m", FOUND),
    "a part of it that goes on to the loss": (WHOLE, "", "", ""),
    "a part of what loads what it does not save": (WHOLE.replace(SAVES, "        print(path)\n"), "self.margin(z,", "self.margin(z.detach(),", ""),
    "a part that is loaded by itself": (WHOLE.replace(SETS_UP, "        self.body.load_state_dict(start)\n" + SETS_UP), "self.margin(z,", "self.margin(z.detach(),", ""),
    "a part that is set to evaluation": (WHOLE.replace(SETS_UP, "        self.body.eval()\n" + SETS_UP), "self.margin(z,", "self.margin(z.detach(),", ""),
    "a part whose weights are used by themselves": (WHOLE.replace("self.margin(z, y)", "(self.margin(z, y) + self.body.weight.norm())"), "self.margin(z,", "self.margin(z.detach(),", ""),
    "handed-in networks, both trained": (GAN, "", "", ""),
    "a loss of targets that a network says": (HEADS, "loss = sum(terms)", "loss = sum(terms) + F.mse_loss(out['one'], out['two'].detach())", ""),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_what_no_gradient_reaches_is_found_at_its_cut(name, tmp_path):
    text, old, new, mark = CHANGES[name]
    assert old in text
    changed = text.replace(old, new, 1) if old else text
    lines = [a + mark if a != b else a for a, b in zip(changed.split("\n"), text.split("\n"))] if mark else [changed]
    changed = "\n".join(lines)
    if "handed-in" in name and mark:
        changed = changed.replace("one.step()", "one.step()  # expect: GL701")
    assert_faults(changed, tmp_path)
