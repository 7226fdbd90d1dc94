"""Terms of a loss that change nothing: of derivatives without a graph, and of networks that are not stepped."""

from __future__ import annotations

from pathlib import Path

import pytest
from audited_snippets import assert_faults

MADE = """
maker, judge = nn.Linear(8, 8), nn.Linear(8, 1)
first = torch.optim.SGD(judge.parameters(), lr=0.1)
second = torch.optim.SGD(maker.parameters(), lr=0.1)
"""
MAKER = """
for x, y in loader:
    made = maker(x)
    second.zero_grad()
    {goes_on}
    loss = F.l1_loss(made, y) - answer
    loss.backward()
    second.step()
    first.zero_grad()
    (judge(y).mean() - judge(made.detach()).mean()).backward()
    first.step()
"""
PENALTY = """
class Trainer:
    def __init__(self, net, optimizer, weight=10.0):
        self.net, self.optimizer, self.weight = net, optimizer, weight
    def penalty(self, x):
        x = x.detach().requires_grad_()
        slope = torch.autograd.grad(self.net(x).sum(), x{flag})[0]
        return self.weight * ((slope.norm(dim=1) - 1) ** 2).mean()
    def fit(self, batches):
        for x, y in batches:
            self.optimizer.zero_grad()
            loss = self.net(x).mean() + self.penalty(x)
            loss.backward()
            self.optimizer.step()
"""
CASES = {
    "the output is detached before the critic": MADE
    + MAKER.format(goes_on="answer = judge(made.detach()).mean()  # expect: GL615"),
    "the critic answers without a graph": MADE
    + MAKER.format(goes_on="with torch.no_grad():\n        answer = judge(made).mean()  # expect: GL615"),
    "the critic answers": MADE + MAKER.format(goes_on="answer = judge(made).mean()"),
    "both are stepped with one loss": MADE
    + """
for x, y in loader:
    first.zero_grad()
    second.zero_grad()
    made = maker(x)
    (F.l1_loss(made, y) + judge(made.detach()).mean()).backward()
    first.step()
    second.step()
""",
    "a term is only a number": """
for x, y in loader:
    out = model(x)
    loss = F.cross_entropy(out, y) + 0.1 * float(out.square().mean())  # expect: GL615
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(float(loss))
""",
    "a penalty of derivatives with a graph": PENALTY.format(flag=", create_graph=True"),
    "and without": PENALTY.format(flag="").replace("x)[0]", "x)[0]  # expect: GL615"),
    "with the flag of a caller": PENALTY.format(flag=", create_graph=self.net.training"),
    "a number of a loss in the sum, and those of what goes backward by itself or is logged": """
for x, y in loader:
    out = model(x)
    first, second = F.cross_entropy(out, y), out.pow(2).mean()
    loss = 0.5 * first.item() + second  # expect: GL615
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
for x, y in loader:
    out = model(x)
    optimizer.zero_grad()
    first = F.cross_entropy(out, y)
    first.backward(retain_graph=True)
    loss = first.item() + model(x).pow(2).mean()
    loss.backward()
    optimizer.step()
for x, y in loader:
    out = model(x)
    optimizer.zero_grad()
    first, second = F.cross_entropy(out, y), out.pow(2).mean()
    shown = first.item() + second
    loss = first / first.item() + second
    loss.backward()
    optimizer.step()
    print(shown)
""",
    "values without a graph in a sum that a weight with one multiplies": """
actor, critic = nn.Linear(8, 4), nn.Linear(8, 4)
one = torch.optim.SGD(actor.parameters(), lr=0.1)
for x, y in loader:
    weights = probabilities(x)
    with torch.no_grad():
        value = critic(x)
    loss = (weights * (0.2 * actor(x) - value)).mean()
    one.zero_grad()
    loss.backward()
    one.step()
""",
}

UNSEEN = """
from losses import EdgeLoss, CharLoss
from nets import Net
net = Net()
edge_loss, char_loss = EdgeLoss(), CharLoss()
opt = torch.optim.Adam(net.parameters())
for x, y in loader:
    opt.zero_grad()
    out = net(x)
    whole = sum([char_loss(out[j], y) for j in range(len(out))])
    term = {term}
    loss = whole + 0.1 * term
    loss.backward()
    opt.step()
"""
TERMS = {
    "new tensors of its numbers": ("torch.tensor([edge_loss(out[j], y) for j in range(3)]).sum()", True),
    "their own sum": ("torch.stack([edge_loss(out[j], y) for j in range(3)]).sum()", False),
    "its number": ("edge_loss(out, y).item()", True),
    "its data": ("edge_loss(out, y).data", True),
    "a part of the whole": ("whole.detach()", False),
}
CASES |= {
    f"beside a sum of unseen losses, {name}": UNSEEN.format(term=term + ("  # expect: GL615" if wrong else ""))
    for name, (term, wrong) in TERMS.items()
}

GROUPS = """
def fit(net, groups):
    opt = torch.optim.SGD([dict(params=one.parameters(), lr=0.1) for one in groups], lr=0.1)
    for x, y in loader:
        out, beside = net(x)
        loss = F.cross_entropy(out, y) + 0.4 * F.cross_entropy(beside, y){number}
        opt.zero_grad()
        loss.backward()
        opt.step()
"""
CASES |= {
    "a number of an output of the network that the rest trains": GROUPS.format(number=".item()  # expect: GL615"),
    "a loss of it without its graph": GROUPS.format(number=".detach()  # expect: GL615"),
    "its data": GROUPS.format(number=".data  # expect: GL615"),
    "a loss whose value alone is taken away": GROUPS.format(number=" - F.cross_entropy(beside, y).detach()"),
    "a term of another output": GROUPS.format(number=""),
}
DISCRIMINATORS = """
makers, near, far = nn.Linear(8, 8), nn.Linear(8, 1), nn.Linear(8, 1)
one = torch.optim.SGD([*near.parameters(), *far.parameters()], lr=0.1)
two = torch.optim.SGD(makers.parameters(), lr=0.1)
for x, y in loader:
    made = makers(x)
    of_near, of_far = near(made.detach()).mean(), far(made.detach()).mean()
    one.zero_grad()
    loss = of_near + of_far{cut}
    loss.backward()
    one.step()
    two.zero_grad()
    (unseen(y) * F.l1_loss(made, x) - near(made).mean() - far(made).mean()).backward()
    two.step()
"""
CASES |= {
    "a term is cut, beside a loss of unknown making": DISCRIMINATORS.format(cut=".detach()  # expect: GL615"),
    "two terms, beside a loss of unknown making": DISCRIMINATORS.format(cut=""),
}

ANSWERS = """
from nets import Net
def fit(args):
    net = Net()
    params = net.parameters()
    opt = torch.optim.AdamW(params, 0.1) if args.adam else torch.optim.SGD(net.parameters(), 0.1)
    for x, y in loader:
        out, beside, weight = net(x)
        loss = {loss}
        opt.zero_grad()
        loss.backward()
        opt.step()
"""
SUMS = {
    "of an answer of the network, whichever its optimizer is": "out + beside.detach()  # expect: GL615",
    "of an answer that is weighed": "out + 0.1 * beside.data  # expect: GL615",
    "which an answer multiplies": "(out + beside.detach()) * weight",
    "of which the square goes backward": "(out + beside.detach()).square().mean()",
    "that is taken away": "out - beside.detach()",
}
CASES |= {f"a sum without a graph, {name}": ANSWERS.format(loss=loss) for name, loss in SUMS.items()}
CLUSTERS = """
def sharpened(q):
    weight = q**2 / q.sum(0)
    return (weight.t() / weight.sum(1)).t()
for x, y in loader:
    q = model(x).softmax(-1)
    kept = q.data
    p = sharpened(kept)
    near, whole = F.kl_div({left}.log(), p, reduction="batchmean"), F.cross_entropy(model(x), y)
    loss = 0.1 * near + whole{mark}
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
CASES |= {
    "a divergence from itself of what is kept without its graph": CLUSTERS.format(
        left="kept", mark="  # expect: GL615"
    ),
    "a divergence from what is kept without its graph": CLUSTERS.format(left="(q + 1e-8)", mark=""),
}


@pytest.mark.parametrize("name", CASES)
def test_terms_of_no_use_are_found(name: str, tmp_path: Path) -> None:
    assert_faults(CASES[name], tmp_path)
