"""The forward pass of a network, or of a loss, is followed where a loop calls it."""

from __future__ import annotations

import pytest
from audited_snippets import HEAD, STEP, expected, findings

NETWORK = """
class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.wide = nn.Linear(8, 4), nn.Linear(8, 4)

    def forward(self, x):
        h = self.body(x)
        return RESULT

net = Network()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for x, y in loader:
    LOSS
"""
CASES = {
    "the log of a softmax": ("torch.log(F.softmax(h, 1))", "loss = F.nll_loss(net(x), y)", "GL601", ""),
    "a root of squares": ("((h - self.wide(x)) ** 2).sum(1).sqrt()", "loss = net(x).mean()", "GL603", ""),
    "and with something added": ("(h.pow(2).sum(1) + 1e-6).sqrt()", "loss = net(x).mean()", "", ""),
    "a softmax written out": (
        "torch.exp(h) / torch.exp(h).sum(1, keepdim=True)",
        "loss = F.nll_loss(net(x), y)",
        "GL604",
        "",
    ),
    "a softmax of products written out": (
        "(e := torch.exp(torch.einsum('nd,md->nm', h, self.wide(x)))) / e.sum(1, keepdim=True)",
        "loss = F.nll_loss(net(x), y)",
        "GL604",
        "",
    ),
    "of divided products": (
        "(e := (h @ self.wide(x).t() / 4).exp()) / e.sum(1, keepdim=True)",
        "loss = F.nll_loss(net(x), y)",
        "GL604",
        "",
    ),
    "of products minus their maximum": (
        "(e := torch.exp((s := torch.mm(h, h.t())) - s.amax(1, True))) / e.sum(1, keepdim=True)",
        "loss = F.nll_loss(net(x), y)",
        "",
        "",
    ),
    "of directions": (
        "(e := torch.exp((u := F.normalize(h)) @ u.t())) / e.sum(1, keepdim=True)",
        "loss = F.nll_loss(net(x), y)",
        "",
        "",
    ),
    "a rate": ("torch.exp(h)", "loss = F.mse_loss(net(x), y)", "", ""),
    "a result that no loss uses": ("torch.log(F.softmax(h, 1)), h", "p, q = net(x); loss = q.mean()", "", ""),
    "one of several outputs as a divisor": ("h, self.wide(x)", "a, b = net(x); loss = (a / b).mean()", "", "GL602"),
    "exp of one of several outputs": ("h, self.wide(x)", "a, b = net(x); loss = (b.exp() + a).mean()", "", ""),
    "1 - tanh squared": ("h", "a = torch.tanh(net(x)); loss = torch.log(1 - a.pow(2)).mean()", "", "GL601"),
    "and with something added to it": (
        "h",
        "a = torch.tanh(net(x)); loss = torch.log(1 - a.pow(2) + 1e-6).mean()",
        "",
        "",
    ),
    "divided by the sum of an output": ("h", "p = net(x); loss = (p * y).sum() / p.sum()", "", "GL602"),
    "divided by the sum of a mask": ("h", "loss = (net(x) * y).sum() / y.sum().clamp(min=1)", "", ""),
}


@pytest.mark.parametrize("name", CASES)
def test_the_text_of_a_forward_pass_is_followed(name, tmp_path):
    result, loss, inside, outside = CASES[name]
    text = HEAD + NETWORK.replace("RESULT", result + f"  # expect: {inside}" * bool(inside))
    text = text.replace("LOSS", loss + f"  # expect: {outside}" * bool(outside)) + STEP
    assert findings(text, tmp_path) == expected(text)


def test_a_criterion_of_the_project_is_followed_too(tmp_path):
    text = (
        HEAD
        + """
class Overlap(nn.Module):
    def forward(self, mine, other):
        return 1 - (mine * other).sum() / mine.sum()  # expect: GL602

criterion = Overlap()
for x, y in loader:
    loss = criterion(torch.sigmoid(model(x)), y)
"""
        + STEP
    )
    assert findings(text.replace("Overlap", "OverlapLoss"), tmp_path) == expected(text)
    assert findings(text, tmp_path) == expected(text)


SIMILAR = """
def contrast(one, two, same):
    scores = one @ two.t() / 0.1
    each = torch.exp(scores){mark}
    near = (each * same.float()).sum(dim=1)
    far = (each * (1 - same.float())).sum(dim=1)
    return -torch.log((near + 1e-8) / (near + far + 1e-8)).mean()
for x, y in loader:
    one, two = {of}
    loss = contrast(one, two, y)
"""


@pytest.mark.parametrize(
    ("of", "code"),
    [
        ("model(x), model(-x)", "GL604"),
        ("F.normalize(model(x), dim=1), F.normalize(model(-x), dim=1)", ""),
        ("encode(x), encode(-x)", ""),
    ],
)
def test_a_quotient_of_exp_is_found_behind_a_mask(of, code, tmp_path):
    text = HEAD + SIMILAR.format(of=of, mark=f"  # expect: {code}" * bool(code)) + STEP
    assert findings(text, tmp_path) == expected(text)
