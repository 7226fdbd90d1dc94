"""Several optimizers in one iteration, those that an object keeps, and values that go to a logger."""

from __future__ import annotations

import pytest
from audited_snippets import assert_marked

AGENT = """
class Agent:
    def __init__(self, actor, critic):
        self.actor, self.critic = actor, critic
        self.one = torch.optim.Adam(self.actor.parameters())
        self.two = torch.optim.Adam(self.critic.parameters())
"""
CASES = {
    "clipped after the step, where a flag may pass over the backward pass": AGENT
    + """
    def run(self, batches, learn, bound):
        for s, t in batches:
            self.two.zero_grad()
            if learn:
                F.mse_loss(self.critic(s), t).backward()
            self.two.step()
            if bound:
                nn.utils.clip_grad_norm_(self.critic.parameters(), 1.0)  # expect: GL101
""",
    "accumulated beside settings that an optimizer was made with": """
class Muon(torch.optim.Optimizer):
    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr, "nesterov": True})
optimizers = [Muon(model.parameters(), 0.1), torch.optim.SGD(model.parameters(), 0.1)]
for step in range(9):
    for opt in optimizers:
        if opt.defaults.get("nesterov"):
            opt.param_groups[0]["lr"] = 0.1 / (step + 1)
    for _ in range(4):
        x, y = next(batches)
        F.cross_entropy(model(x), y).backward()  # expect: GL301
    for opt in optimizers:
        opt.step()
    for opt in optimizers:
        opt.zero_grad()
""",
    "clipped too early, whatever further flags hold": """
def run(clip, bound, scaled):
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        if clip:
            if bound > 0:
                nn.utils.clip_grad_norm_(model.parameters(), bound)  # expect: GL102
        if scaled:
            (2 * loss).backward()
        else:
            loss.backward()
        optimizer.step()
""",
    "clipped between two backward passes, of which a flag chooses the first": """
def run(clip, early):
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        if early:
            loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if not early:
            loss.backward()
        optimizer.step()
""",
    "clipped after the step of an optimizer that a function made of the network": """
from elsewhere import build, build_optimizer
def run(options):
    maker, critic = build(options), build(options)
    one, two = build_optimizer(maker, options), build_optimizer(critic, options)
    for x, _ in loader:
        one.zero_grad()
        (-critic(maker(x)).mean()).backward()
        one.step()
        nn.utils.clip_grad_norm_(maker.parameters(), 1.0)  # expect: GL101
        two.zero_grad()
        (critic(maker(x).detach()).mean() - critic(x).mean()).backward()
        nn.utils.clip_grad_norm_(critic.parameters(), 1.0)
        two.step()
""",
    "gradients just set to zero are clipped, after another's update": AGENT
    + """
    def run(self, batches):
        for s, t in batches:
            self.two.zero_grad()
            F.mse_loss(self.critic(s), t).backward()
            nn.utils.clip_grad_norm_(self.critic.parameters(), 1.0)
            self.two.step()
            self.one.zero_grad()
            nn.utils.clip_grad_norm_(self.actor.parameters(), 1.0)  # expect: GL102
            (-self.critic(self.actor(s)).mean()).backward()
            self.one.step()
""",
    "clipped too early in the first of two updates": AGENT
    + """
    def update(self, s, t, second):
        self.one.zero_grad()
        self.two.zero_grad()
        nn.utils.clip_grad_norm_(self.actor.parameters(), 1.0)  # expect: GL102
        F.mse_loss(self.critic(self.actor(s)), t).backward()
        nn.utils.clip_grad_norm_(self.critic.parameters(), 1.0)
        self.one.step()
        self.two.step()
        if second:
            self.one.zero_grad()
            (-self.critic(self.actor(s)).mean()).backward()
            nn.utils.clip_grad_norm_(self.actor.parameters(), 1.0)
            self.one.step()
""",
    "two parts of a part of a model, which is set to zero": """
net = GPT()
one = torch.optim.Adam([net.body.embedding.weight])
two = torch.optim.Adam([p for p in net.body.blocks.parameters() if p.ndim < 2])
for x, y in loader:
    net(x, y).backward()
    one.step()
    two.step()
    net.zero_grad(set_to_none=True)
""",
    "the other one is set to zero elsewhere": AGENT
    + """
    def update(self, s, t):
        self.two.zero_grad()
        F.mse_loss(self.critic(s), t).backward()
        self.two.step()
        (-self.critic(self.actor(s)).mean()).backward()
        self.one.step()
def clear(agent):
    agent.one.zero_grad()
""",
    "one of two arguments is set to zero": """
def train(net, batches, one, two, scaler):
    for x, y in batches:
        with torch.autocast("cuda"):
            loss = F.cross_entropy(net(x), y)
        scaler.scale(loss).backward()
        scaler.step(one)  # expect: GL305
        scaler.step(two)
        scaler.update()
        two.zero_grad()
""",
    "a part of an argument is stepped, the whole set to zero": """
def train(net, batches, whole, scaler):
    for x, y in batches:
        with torch.autocast("cuda"):
            loss = F.cross_entropy(net(x), y)
        scaler.scale(loss).backward()
        scaler.step(whole.optimizer)
        scaler.update()
        whole.zero_grad()
""",
    "what a module's logger receives": """
import lightning
class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.net = nn.Linear(8, 4)
    def configure_optimizers(self):
        return torch.optim.SGD(self.net.parameters(), lr=0.1)
    def training_step(self, batch, i):
        loss = F.cross_entropy(self.net(batch[0]), batch[1])
        self.manual_backward(loss)  # expect: GL301
        self.logger.experiment.add_scalar("loss", loss.item(), i)
        if (i + 1) % 4 == 0:
            self.optimizers().step()
            self.optimizers().zero_grad()
""",
    "a critic's gradients of the other's loss are zeroed with the next window": """
def train(net, critic, n):
    one = torch.optim.Adam(net.parameters())
    two = torch.optim.Adam(critic.parameters())
    for i, (x, y) in enumerate(loader):
        if i % n == 0:
            batches = []
            two.zero_grad()
            one.zero_grad()
        batches.append((x, y))
        (F.mse_loss(critic(net(x).detach()), y) / n).backward()
        if (i + 1) % n != 0:  # expect: GL307
            continue
        two.step()
        for x, y in reversed(batches):
            (critic(net(x)).mean() / n).backward()
        one.step()
""",
    "a critic's own gradients are zeroed within the window": """
def train(net, critic, n):
    one = torch.optim.Adam(net.parameters())
    two = torch.optim.Adam(critic.parameters())
    for i, (x, y) in enumerate(loader):
        two.zero_grad()  # expect: GL306
        (F.mse_loss(critic(net(x).detach()), y) / n).backward()
        if (i + 1) % n != 0:  # expect: GL307
            continue
        two.step()
        one.zero_grad()
        (critic(net(x)).mean()).backward()
        one.step()
""",
    "zeroed between two losses, of which another optimizer uses the first": """
one, two = nn.Linear(8, 8), nn.Linear(8, 8)
both, first = torch.optim.Adam([*one.parameters(), *two.parameters()]), torch.optim.Adam(one.parameters())
for x, y in loader:
    both.zero_grad()
    first.zero_grad()
    one(x).mean().backward()
    first.step()
    both.zero_grad()
    two(x).mean().backward()
    both.step()
""",
}
CASES |= {
    "a clip of what is zeroed, of networks that are handed in": """
def update(net, value, first, second, x, y):
    second.zero_grad()
    (value(x) - y).pow(2).mean().backward()
    second.step()
    first.zero_grad()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)  # expect: GL102
    net(x).mean().backward()
    first.step()
""",
    "a clip of what is zeroed, and another that is too late for it": """
def fit(net, head, opt):
    for x, y in loader:
        opt.zero_grad()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)  # expect: GL102
        F.cross_entropy(head(net(x)), y).backward()
        nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        opt.step()
""",
    "a clip of gradients that are there, of networks that are handed in": """
def update(net, value, first, second, x, y):
    second.zero_grad()
    (value(x) - y).pow(2).mean().backward()
    nn.utils.clip_grad_norm_(value.parameters(), 1.0)
    second.step()
    first.zero_grad()
    net(x).mean().backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    first.step()
""",
}
CASES |= {
    "a clip between the steps of two, of networks that are handed in": """
def update(net, value, first, second, x, y):
    first.zero_grad()
    second.zero_grad()
    (value(x) - y).pow(2).mean().backward()
    second.step()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    net(x).mean().backward()
    first.step()
""",
}

PARTS = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.style = nn.Linear(3, 3), nn.Linear(3, 3)
    def forward(self, x):
        return self.body(self.style(x))
net, other = nn.DataParallel(Net()).cuda(), nn.DataParallel(Net()).cuda()
one = torch.optim.Adam(net.module.body.parameters())
two = torch.optim.Adam(other.module.body.parameters())
for x in batches:
    other.zero_grad()
    other(x).mean().backward()
    two.step()
    {zeroed}.zero_grad()
    net(x).mean().backward()
    one.step(){mark}
"""
CASES |= {
    "the network whose part an optimizer holds is zeroed": PARTS.format(zeroed="net", mark=""),
    "another network is zeroed": PARTS.format(zeroed="other", mark="  # expect: GL305"),
}


@pytest.mark.parametrize("name", CASES)
def test_several_optimizers(name, tmp_path):
    assert_marked(CASES[name], tmp_path)
