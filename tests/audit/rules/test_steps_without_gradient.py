"""Steps before the backward pass, and of weights that are frozen."""

from __future__ import annotations

import pytest
from audited_snippets import assert_faults

CASES = {
    "of a network whose output its own loss detaches": """
from networks import Judge, Maker
judge, maker = Judge(), Maker(8).to("cuda")
first = torch.optim.SGD(judge.parameters(), lr=0.1)
second = torch.optim.SGD(maker.parameters(), lr=0.1)
for x, y in loader:
    first.zero_grad()
    second.zero_grad()
    judge(maker(x)).mean().backward()
    first.step()
    first.zero_grad()
    second.zero_grad()
    (-judge(maker(x).detach())).mean().backward()
    second.step()  # expect: GL701
for x, y in loader:
    first.zero_grad()
    judge(maker(x).detach()).mean().backward()
    first.step()
    second.zero_grad()
    (-judge(maker(x))).mean().backward()
    second.step()
""",
    "of a running average, beside a penalty of derivatives": """
from torch.autograd import Variable, grad
from networks import Judge, Maker
judge, maker, average = Judge(), Maker(8).cuda(), Maker(8).cuda()
first = torch.optim.SGD(judge.parameters(), lr=0.1)
second = torch.optim.SGD(average.parameters(), lr=0.1)
for x, y in loader:
    judge.zero_grad()
    judge(x).mean().backward()
    between = Variable(x.data + torch.rand(4) * maker(y).data, requires_grad=True)
    slope = grad(outputs=judge(between).sum(), inputs=between, create_graph=True)[0]
    ((slope.norm(2, dim=1) - 1) ** 2).mean().backward()
    first.step()
    maker.zero_grad()
    (-judge(maker(y))).mean().backward()
    second.step()  # expect: GL701
""",
    "of what a penalty of derivatives moves alone": """
from torch.autograd import Variable, grad
from networks import Judge, Maker
judge, maker, average = Judge(), Maker(8).cuda(), Maker(8).cuda()
first = torch.optim.SGD(judge.parameters(), lr=0.1)
second = torch.optim.SGD(average.parameters(), lr=0.1)
for x, y in loader:
    first.zero_grad()
    second.zero_grad()
    judge(x).mean().backward()
    point = Variable(x.data, requires_grad=True)
    slope = grad(outputs=average(point).sum(), inputs=point, create_graph=True)[0]
    ((slope.norm(2, dim=1) - 1) ** 2).mean().backward()
    first.step()
    second.step()
""",
    "of the network that follows another, of unknown data": """
from networks import Actor, Critic
class Agent:
    def __init__(self, size):
        self.actor, self.follower = Actor(size), Actor(size)
        self.critic = Critic(size)
        self.one = torch.optim.Adam(self.follower.parameters())
        self.two = torch.optim.Adam(self.critic.parameters())
    def update(self, batch):
        state, action, reward, later = batch
        with torch.no_grad():
            aim = reward + 0.9 * self.critic(later, self.follower(later))
        self.two.zero_grad()
        F.mse_loss(self.critic(state, action), aim).backward()
        self.two.step()
        loss = -self.critic(state, self.actor(state)).mean()
        self.one.zero_grad()
        loss.backward()
        self.one.step()  # expect: GL701
        for a, b in zip(self.follower.parameters(), self.actor.parameters()):
            a.data.mul_(0.9).add_(b.data, alpha=0.1)
""",
    "of the network that another follows": """
from networks import Actor, Critic
class Agent:
    def __init__(self, size):
        self.actor, self.follower = Actor(size), Actor(size)
        self.critic = Critic(size)
        self.one = torch.optim.Adam(self.actor.parameters())
        self.two = torch.optim.Adam(self.critic.parameters())
    def update(self, batch):
        state, action, reward, later = batch
        with torch.no_grad():
            aim = reward + 0.9 * self.critic(later, self.follower(later))
        self.two.zero_grad()
        F.mse_loss(self.critic(state, action), aim).backward()
        self.two.step()
        loss = -self.critic(state, self.actor(state)).mean()
        self.one.zero_grad()
        loss.backward()
        self.one.step()
        for a, b in zip(self.follower.parameters(), self.actor.parameters()):
            a.data.mul_(0.9).add_(b.data, alpha=0.1)
""",
    "before its backward pass": """
for x, y in loader:
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    optimizer.step()  # expect: GL701
    loss.backward()
""",
    "one of two optimizers before its backward pass": """
other = nn.Linear(8, 4)
second = torch.optim.SGD(other.parameters(), lr=0.1)
for x, y in loader:
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
    second.zero_grad()
    loss = F.cross_entropy(other(x), y)
    second.step()  # expect: GL701
    loss.backward()
""",
    "the step of the batch before, at the start": """
optimizer.zero_grad()
for x, y in loader:
    optimizer.step()
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
""",
    "of a frozen copy": """
import copy
average = copy.deepcopy(model)
for p in average.parameters():
    p.requires_grad = False
optimizer = torch.optim.SGD(average.parameters(), lr=0.1)
for x, y in loader:
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()  # expect: GL701
""",
    "of the model, whose copy is frozen": """
import copy
average = copy.deepcopy(model)
average.requires_grad_(False)
for x, y in loader:
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
""",
    "of a copy of what is not known": """
import copy
from somewhere import make
model = make()
average = copy.deepcopy(model)
for p in average.parameters():
    p.requires_grad = False
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
""",
    "frozen, but for a new last layer": """
model.requires_grad_(False)
model[2] = nn.Linear(16, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
""",
    "frozen, but for a weight": """
for p in model.parameters():
    p.requires_grad = False
list(model.parameters())[-1].requires_grad = True
for x, y in loader:
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
""",
    "frozen, but for the layer that a method returns": """
from somewhere import make
model = make()
for p in model.parameters():
    p.requires_grad = False
for p in model.get_classifier().parameters():
    p.requires_grad = True
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
""",
    "frozen under a condition": """
if len(loader) < 3:
    model.requires_grad_(False)
for x, y in loader:
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
""",
    "of a frozen model and of another": """
other = nn.Linear(4, 4)
model.requires_grad_(False)
optimizer = torch.optim.SGD(list(model.parameters()) + list(other.parameters()), lr=0.1)
for x, y in loader:
    optimizer.zero_grad()
    F.cross_entropy(other(model(x)), y).backward()
    optimizer.step()
""",
    "of parameters of two models, the second one's clipped": """
import itertools
other = nn.Linear(4, 4)
optimizer = torch.optim.SGD(itertools.chain(model.parameters(), other.parameters()), lr=0.1)
for x, y in loader:
    optimizer.zero_grad()
    F.cross_entropy(other(model(x)), y).backward()
    nn.utils.clip_grad_norm_(other.parameters(), 1.0)
    optimizer.step()
""",
    "of weights that were frozen before the optimizer was given them": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(8, 8), nn.Linear(8, 4)
    def forward(self, x):
        return self.head(self.body(x))
net = Net().to("cuda")
for p in net.parameters():
    p.requires_grad = False
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for x, y in loader:
    opt.zero_grad()
    F.cross_entropy(net(x), y).backward()
    opt.step()  # expect: GL701
""",
    "of a frozen network with a new head, or new layers inside": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(8, 8), nn.Linear(8, 4)
    def forward(self, x):
        return self.head(self.body(x))
one = Net()
one.requires_grad_(False)
one.head = nn.Linear(8, 4)
first = torch.optim.SGD(one.parameters(), lr=0.1)
for x, y in loader:
    first.zero_grad()
    F.cross_entropy(one(x), y).backward()
    first.step()
two = Net()
two.requires_grad_(False)
for name, part in two.named_modules():
    setattr(part, name, Adapter(part))
second = torch.optim.SGD(two.parameters(), lr=0.1)
for x, y in loader:
    second.zero_grad()
    F.cross_entropy(two(x), y).backward()
    second.step()
class Trainer:
    def __init__(self):
        self.net = Net()
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.1)
    def a_later_stage(self):
        for p in self.net.parameters():
            p.requires_grad = False
    def fit(self):
        for x, y in loader:
            self.opt.zero_grad()
            F.cross_entropy(self.net(x), y).backward()
            self.opt.step()
""",
}


@pytest.mark.parametrize("name", CASES)
def test_a_step_needs_a_gradient(name, tmp_path):
    assert_faults(CASES[name], tmp_path)
