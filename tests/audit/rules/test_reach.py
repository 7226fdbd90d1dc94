"""Forward passes without a graph, clipping of other weights, and evaluation mode that is kept on."""

from __future__ import annotations

from pathlib import Path

import pytest
from audited_snippets import assert_faults

MADE = """
net = nn.Linear(8, 4)
other = nn.Linear(8, 4)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
"""
CASES = {
    "the forward pass in no_grad": """
for x, y in loader:
    opt.zero_grad()
    with torch.no_grad():
        out = net(x)  # expect: GL712
    F.cross_entropy(out, y).backward()
    opt.step()
""",
    "one function for training and, in no_grad, for validation": """
def run(phase):
    for x, y in loader:
        loss = F.cross_entropy(net(x), y)
        if phase == "train":
            opt.zero_grad()
            loss.backward()
            opt.step()
for epoch in range(3):
    run("train")
    with torch.no_grad():
        run("validate")
""",
    "one function for both, only ever in no_grad": """
def run(phase):
    for x, y in loader:
        loss = F.cross_entropy(net(x), y)  # expect: GL712
        if phase == "train":
            opt.zero_grad()
            loss.backward()
            opt.step()
with torch.no_grad():
    run("train")
    run("validate")
""",
    "no gradient in the evaluation only": """
for x, y in loader:
    opt.zero_grad()
    with torch.set_grad_enabled(training):
        loss = F.cross_entropy(net(x), y)
    loss.backward()
    opt.step()
""",
    "eval() after the first epoch": """
def evaluate(model):
    model.eval()
    with torch.no_grad():
        return [model(x) for x, y in held_out]
net.train()
for epoch in range(9):
    for x, y in loader:  # expect: GL707
        opt.zero_grad()
        F.cross_entropy(net(x), y).backward()
        opt.step()
    evaluate(net)
""",
    "eval() of another network": """
for epoch in range(9):
    for x, y in loader:
        opt.zero_grad()
        F.cross_entropy(net(x), y).backward()
        opt.step()
    other.eval()
    with torch.no_grad():
        other(held_out)
""",
    "eval() on purpose, for all of the training": """
for epoch in range(9):
    net.eval()
    for x, y in loader:
        opt.zero_grad()
        F.cross_entropy(net(x), y).backward()
        opt.step()
""",
    "eval() on purpose, at the head of the function that trains": """
def train(model):
    model.eval()
    for x, y in loader:
        opt.zero_grad()
        F.cross_entropy(model(x), y).backward()
        opt.step()
def test(model):
    model.eval()
    with torch.no_grad():
        return [model(x) for x, y in held_out]
for epoch in range(9):
    train(net)
    test(net)
""",
    "an evaluation before the batches of an epoch": """
def evaluate(model):
    model.eval()
    with torch.no_grad():
        return [model(x) for x, y in held_out]
net.train()
for epoch in range(9):
    evaluate(net)
    for x, y in loader:  # expect: GL707
        opt.zero_grad()
        F.cross_entropy(net(x), y).backward()
        opt.step()
""",
    "a generator of parameters that the optimizer has gone through": """
params = filter(lambda p: p.requires_grad, net.parameters())
opt = torch.optim.SGD(params, lr=0.1)
for x, y in loader:
    opt.zero_grad()
    F.cross_entropy(net(x), y).backward()
    torch.nn.utils.clip_grad_norm_(params, 1.0)  # expect: GL705
    opt.step()
""",
    "a generator of parameters that is clipped in each iteration": """
params = net.parameters()
for x, y in loader:
    opt.zero_grad()
    F.cross_entropy(net(x), y).backward()
    torch.nn.utils.clip_grad_norm_(params, 1.0)  # expect: GL705
    opt.step()
""",
    "a loss made anew from its number": """
for x, y in loader:
    opt.zero_grad()
    loss = F.cross_entropy(net(x), y)
    loss = torch.tensor(loss.item(), requires_grad=True)  # expect: GL712
    loss.backward()
    opt.step()
""",
    "a loss that is told to have a gradient": """
for x, y in loader:
    opt.zero_grad()
    loss = F.cross_entropy(net(x).detach(), y)  # expect: GL712
    loss.requires_grad = True
    loss.backward()
    loss = F.cross_entropy(net(x).detach(), y).requires_grad_()  # expect: GL712
    loss.backward()
    opt.step()
    image = (net(x) + y).detach() + 1
    image.requires_grad_()
    (image - y).square().mean().backward()
    print(image.grad)
""",
    "a loss in a Variable of its own": """
from torch.autograd import Variable
for x, y in loader:
    opt.zero_grad()
    loss = Variable(F.cross_entropy(net(Variable(x)), Variable(y)).data, requires_grad=True)  # expect: GL712
    loss.backward()
    opt.step()
""",
    "an image that is trained": """
for x, y in loader:
    opt.zero_grad()
    image = net(x).detach()
    image.requires_grad = True
    (image - y).pow(2).mean().backward()
    F.cross_entropy(net(x), y).backward()
    opt.step()
""",
    "one of two terms in no_grad": """
def distance(one, two):
    return (F.normalize(one, dim=1) - two).pow(2).mean()
for x, y in loader:
    opt.zero_grad()
    first = net(x)
    with torch.no_grad():
        second = net(y)  # expect: GL615
        target = other(x)
    loss = distance(first, target)
    loss += distance(second, target)
    loss.backward()
    opt.step()
""",
    "two terms, each with a target in no_grad": """
def distance(one, two):
    return (F.normalize(one, dim=1) - two).pow(2).mean()
for x, y in loader:
    opt.zero_grad()
    with torch.no_grad():
        target = net(x)
    loss = distance(net(x), target)
    loss += distance(net(y), target)
    loss.backward()
    opt.step()
""",
    "a loss function that is given, of what is computed in no_grad": """
def fit(net: nn.Module, criterion: nn.Module, opt, loader):
    for batch in loader:
        opt.zero_grad()
        with torch.no_grad():
            out = net(batch["x"])  # expect: GL712
        loss = criterion(out, batch["label"].view(-1))
        loss.backward()
        opt.step()
""",
    "a loss of a detached output and of a target that is computed": """
from elsewhere import metrics, prepare
class Trainer:
    def __init__(self, net, opt):
        self.net, self.opt, self.loss = net, opt, metrics.masked_error
    def fit(self):
        for x, y in loader:
            self.opt.zero_grad()
            loss = self.loss(self.net(x).detach(), prepare(y))
            loss = loss + F.cross_entropy(self.net(x).detach(), prepare(y))
            loss.backward()
            self.opt.step()
    def fit_classes(self):
        for x, y in loader:
            self.opt.zero_grad()
            labels = prepare(y)
            F.cross_entropy(self.net(x).detach(), labels).backward()  # expect: GL712
            self.opt.step()
""",
    "an evaluation in each iteration, of all data": """
def test(model):
    model.eval()
    with torch.no_grad():
        return model(held_out)
def update(model):
    opt.zero_grad()
    F.cross_entropy(model(x), y).backward()  # expect: GL707
    opt.step()
for epoch in range(9):
    update(net)
    test(net)
""",
    "an evaluation in each iteration, taken back": """
def test(model):
    model.eval()
    with torch.no_grad():
        return model(held_out)
for epoch in range(9):
    net.train()
    opt.zero_grad()
    F.cross_entropy(net(x), y).backward()
    opt.step()
    test(net)
""",
    "an evaluation from time to time, in the loop itself and in a function": """
def test(model):
    model.eval()
    with torch.no_grad():
        return [model(x) for x, y in held_out]
for epoch in range(9):
    net.train()
    for i, (x, y) in enumerate(loader):  # expect: GL707
        opt.zero_grad()
        F.cross_entropy(net(x), y).backward()
        opt.step()
        if i % every == 0:
            test(net)
for epoch in range(9):
    net.train()
    for i, (x, y) in enumerate(loader):
        opt.zero_grad()
        F.cross_entropy(net(x), y).backward()
        opt.step()
        if i % every == 0:
            net.eval()  # expect: GL707
            for x, y in held_out:
                losses.append(F.cross_entropy(net(x), y).item())
""",
    "eval() at the end of every batch": """
for epoch in range(9):
    net.train()
    for x, y in loader:
        opt.zero_grad()
        F.cross_entropy(net(x), y).backward()
        opt.step()
        net.eval()  # expect: GL707
        print(accuracy(net(x), y))
    for x, y in loader:
        net.train()
        opt.zero_grad()
        F.cross_entropy(net(x), y).backward()
        opt.step()
        net.eval()
        print(accuracy(net(x), y))
for x, y in loader:
    frozen.eval()
    opt.zero_grad()
    F.cross_entropy(net(frozen(x)), y).backward()
    opt.step()
    frozen.eval()
""",
    "eval() from time to time, for what is not seen, and in the end for good": """
from elsewhere import sample
def fit(net, every, frozen):
    for i, (x, y) in enumerate(loader):
        opt.zero_grad()
        F.cross_entropy(net(x), y).backward()
        opt.step()
        if i % every == 0:
            net.eval()  # expect: GL707
            print(sample(every))
def freeze(net, most):
    for i, (x, y) in enumerate(loader):
        opt.zero_grad()
        F.cross_entropy(net(x), y).backward()
        opt.step()
        if i > most:
            net.eval()
""",
    "a loss of unknown making": """
from elsewhere import performance
def train(net):
    for x, y in loader:  # expect: GL707
        opt.zero_grad()
        loss, count = performance(net(x), y)
        loss.backward()
        opt.step()
def test(net):
    net.eval()
    with torch.no_grad():
        return [net(x) for x, y in held_out]
for epoch in range(9):
    train(net)
    test(net)
""",
    "an evaluation from time to time, taken back, or the last thing that is done": """
def test(model):
    model.eval()
    with torch.no_grad():
        return [model(x) for x, y in held_out]
for epoch in range(9):
    net.train()
    for i, (x, y) in enumerate(loader):
        opt.zero_grad()
        F.cross_entropy(net(x), y).backward()
        opt.step()
        if i % every == 0:
            test(net)
            net.train()
for epoch in range(9):
    net.train()
    for i, (x, y) in enumerate(loader):
        opt.zero_grad()
        F.cross_entropy(net(x), y).backward()
        opt.step()
        if i == most:
            test(net)
            break
""",
    "an evaluation before the first epoch and after each, over several devices": """
from torch.nn.parallel import data_parallel
class Trainer:
    def __init__(self, model, devices):
        self.model, self.devices = model, devices
        self.opt = torch.optim.SGD(model.parameters(), lr=0.1)
    def train(self, batches):
        for x, y in batches:  # expect: GL707
            self.opt.zero_grad()
            F.cross_entropy(data_parallel(self.model, x, device_ids=self.devices), y).backward()
            self.opt.step()
    def test(self, batches):
        self.model.eval()
        with torch.no_grad():
            return [data_parallel(self.model, x, device_ids=self.devices) for x, y in batches]
    def run(self, batches, held_out):
        self.test(held_out)
        while self.epoch < 9:
            self.epoch += 1
            self.train(batches)
            self.test(held_out)
""",
    "clipping a network of a class that is not seen": """
from networks import Net
one, two = Net(8), Net(8).to("cuda")
opt = torch.optim.SGD(one.parameters(), lr=0.1)
for x, y in loader:
    opt.zero_grad()
    target = two(x).detach()
    F.mse_loss(one(x), target).backward()
    torch.nn.utils.clip_grad_norm_(two.parameters(), 1.0)  # expect: GL705
    opt.step()
""",
    "clipping networks that may have a common part": """
from networks import Body, Head
body = Body(8)
one, two = Head(body), Head(body)
opt = torch.optim.SGD(one.parameters(), lr=0.1)
for x, y in loader:
    opt.zero_grad()
    F.cross_entropy(one(x), y).backward()
    torch.nn.utils.clip_grad_norm_(two.parameters(), 1.0)
    opt.step()
""",
    "clipping the other of two networks that are trained in turn": """
second = torch.optim.SGD(other.parameters(), lr=0.1)
for x, y in loader:
    second.zero_grad()
    other(net(x).detach()).mean().backward()
    torch.nn.utils.clip_grad_norm_(other.parameters(), 1.0)
    second.step()
    opt.zero_grad()
    (-other(net(x))).mean().backward()
    torch.nn.utils.clip_grad_norm_(other.parameters(), 1.0)  # expect: GL705
    opt.step()
for x, y in loader:
    second.zero_grad()
    opt.zero_grad()
    other(net(x)).mean().backward()
    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    torch.nn.utils.clip_grad_norm_(other.parameters(), 1.0)
    opt.step()
    second.step()
""",
    "clipping the other of two networks of the file's own classes": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)
    def forward(self, x):
        return self.layer(x)
class Head(nn.Module):
    def __init__(self, body):
        super().__init__()
        self.body = body
    def forward(self, x):
        return self.body(x)
class Other(Net):
    pass
one, two = Net(), Other().to("cuda")
head = Head(two)
first, second = torch.optim.SGD(one.parameters(), lr=0.1), torch.optim.SGD(two.parameters(), lr=0.1)
for x, y in loader:
    first.zero_grad()
    F.mse_loss(one(x), y).backward()
    torch.nn.utils.clip_grad_norm_(two.parameters(), 1.0)  # expect: GL705
    first.step()
    second.zero_grad()
    two(one(x).detach()).mean().backward()
    torch.nn.utils.clip_grad_norm_(head.parameters(), 1.0)
    second.step()
""",
}


NETWORK = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.rate = nn.Linear(8, 8), 0.1
        self.second = nn.Linear(8, 8)
        self.last = nn.Linear(8, 4)
    def forward(self, x):
        x = torch.relu(self.first(x))
        {second}
        x = torch.relu(x)
        {last}
        return x
own = Net()
opt = torch.optim.SGD(own.parameters(), lr=0.1)
for x, y in loader:
    opt.zero_grad()
    F.cross_entropy(own(x), y).backward()
    opt.step()
"""
GOES_ON = "x = self.last(x)"
CASES |= {
    "a network that cuts its own graph": NETWORK.format(
        second="x = self.second(x).detach()  # expect: GL712", last=GOES_ON
    ),
    "clips of two networks that are mixed up": """
opposite = torch.optim.SGD(other.parameters(), lr=0.1)
for x, y in loader:
    opt.zero_grad()
    F.cross_entropy(net(x), y).backward()
    nn.utils.clip_grad_norm_(other.parameters(), 1.0)  # expect: GL705
    opt.step()
    opposite.zero_grad()
    F.cross_entropy(other(x), y).backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)  # expect: GL705
    opposite.step()
""",
    "clips of another optimizer in Lightning": """
import lightning
class Pair(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.maker, self.judge = nn.Linear(8, 8), nn.Linear(8, 1)
    def training_step(self, batch, index):
        one, two = self.optimizers()
        one.zero_grad()
        self.manual_backward(-self.judge(self.maker(batch)).mean())
        self.clip_gradients(two, gradient_clip_val=1.0)  # expect: GL705
        one.step()
        two.zero_grad()
        self.manual_backward(self.judge(self.maker(batch).detach()).mean())
        self.clip_gradients(two, gradient_clip_val=1.0)
        two.step()
    def configure_optimizers(self):
        return [torch.optim.SGD(self.maker.parameters(), lr=0.1), torch.optim.SGD(self.judge.parameters(), lr=0.1)]
""",
    "a network that cuts its own graph in a line of its own": NETWORK.format(
        second="x = self.second(x)\n        x = x.detach()  # expect: GL712", last=GOES_ON
    ),
    "a network whose layer's result is used before it is cut": NETWORK.format(
        second="x = self.second(x)\n        self.kept = x.mean()\n        x = x.detach()", last=GOES_ON
    ),
    "a network that cuts its own graph in a block": NETWORK.format(
        second="with torch.no_grad():\n            x = self.second(x)  # expect: GL712", last=GOES_ON
    ),
    "a network whose result has no graph": NETWORK.format(
        second="x = self.second(x)", last="x = self.last(x).detach()  # expect: GL712"
    ),
    "a network with a layer that is frozen": NETWORK.format(
        second="with torch.no_grad():\n            x = self.second(x)", last=GOES_ON
    ).replace("        self.last =", "        self.second.requires_grad_(False)\n        self.last ="),
    "a network whose layer has another way to the loss": NETWORK.format(
        second="x = self.second(x).detach() + self.second(x)", last=GOES_ON
    ),
    "a network that only shows a result": NETWORK.format(second="self.shown = self.second(x).detach()", last=GOES_ON),
}
CASES |= {
    "clipped for another's step, of networks that a caller made": """
class Learner:
    def __init__(self, mac):
        self.critic = nn.Linear(8, 4)
        self.agents, self.critics = list(mac.parameters()), list(self.critic.parameters())
        self.one, self.two = torch.optim.Adam(self.agents), torch.optim.Adam(self.critics)
    def learn(self, mac, x, y):
        self.two.zero_grad()
        F.cross_entropy(self.critic(x), y).backward()
        nn.utils.clip_grad_norm_(self.critics, 1.0)
        self.two.step()
        self.one.zero_grad()
        (mac(x) * y).mean().backward()
        nn.utils.clip_grad_norm_(self.critics, 1.0)  # expect: GL705
        self.one.step()
""",
    "a loss is clipped": """
for x, y in loader:
    opt.zero_grad()
    loss = F.cross_entropy(net(x), y)
    loss.backward()
    nn.utils.clip_grad_norm_(loss, 1.0)  # expect: GL705
    opt.step()
""",
    "a loss that is not seen, of a model that is stepped": """
from elsewhere import compute, fit_model
net.train()
def fit(fresh, opt):
    for i, (x, y) in enumerate(loader):
        opt.zero_grad()
        loss = compute(x, y, fresh)
        loss.backward()
        nn.utils.clip_grad_norm_(fresh.parameters(), 1.0)
        opt.step()
        if i % 9 == 0:
            fresh.eval()  # expect: GL707
            compute(x, y, fresh)
def again(my_model, opt, index):
    for e in range(9):
        index.train(loader)
        for x, y in loader:
            opt.zero_grad()
            F.cross_entropy(my_model(x), y).backward()
            opt.step()
        my_model.eval()  # expect: GL707
        with torch.no_grad():
            my_model(x)
def restored(fresh, opt):
    for i, (x, y) in enumerate(loader):
        opt.zero_grad()
        loss = compute(x, y, fresh)
        loss.backward()
        nn.utils.clip_grad_norm_(fresh.parameters(), 1.0)
        opt.step()
        if i % 9 == 0:
            fresh.eval()
            fit_model(fresh, x)
""",
    "a copy that is attacked from time to time": """
import copy
def attack(model, x):
    model = copy.deepcopy(model)
    model.eval()
    goal = -model(x).detach()
    for _ in range(5):
        x = x.detach().requires_grad_()
        F.mse_loss(model(x), goal).backward()
        x = x - 0.1 * x.grad.sign()
    return x.detach()
def fit(model, opt, every):
    for i, (x, y) in enumerate(loader):
        opt.zero_grad()
        if i % every == 0:
            x = attack(model, x)
        F.cross_entropy(model(x), y).backward()
        opt.step()
""",
    "another network's gradients are clipped, beside a weight of its own": """
actor, critic = nn.Linear(8, 4), nn.Linear(8, 1)
scale = torch.zeros(1, requires_grad=True)
first = torch.optim.SGD(critic.parameters(), lr=0.1)
second = torch.optim.SGD(actor.parameters(), lr=0.1)
third = torch.optim.Adam([scale], lr=0.1)
for x, y in loader:
    first.zero_grad()
    critic(x).mean().backward()
    first.step()
    second.zero_grad()
    F.cross_entropy(actor(x), y).backward()
    nn.utils.clip_grad_norm_(critic.parameters(), 1.0)  # expect: GL705
    second.step()
    third.zero_grad()
    (scale * x).mean().backward()
    third.step()
""",
    "evaluated features under a head, and a mode that a stack of contexts restores": """
from contextlib import ExitStack, contextmanager
@contextmanager
def evaluating(net):
    before = net.training
    net.eval()
    yield
    net.train(before)
@torch.no_grad()
def evaluate(net):
    with ExitStack() as stack:
        stack.enter_context(evaluating(net))
        return net(torch.ones(8))
class Features(nn.Module):
    def forward(self, x):
        return x
def probe(head: nn.Module, opt: torch.optim.Optimizer):
    features = Features()
    for i, (x, y) in enumerate(loader):
        loss = F.cross_entropy(head(features(x)), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if i % 100 == 0:
            check(features, head)
def check(features, head):
    features.eval()
    with torch.no_grad():
        head(features(torch.ones(8)))
for i, (x, y) in enumerate(loader):
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
    if i % 100 == 0:
        evaluate(model)
""",
}
CASES |= {
    "an evaluation and an example from time to time": """
net.train()
for i, (x, y) in enumerate(loader):  # expect: GL707
    opt.zero_grad()
    out = net(x)
    F.cross_entropy(out, y).backward()
    opt.step()
    if i % 100 == 0:
        net.eval()
        with torch.no_grad():
            print(net(x).mean())
    if i % 500 == 0:
        net.eval()
        print(net(x).argmax())
""",
    "clipped twice, and the other never": """
def update(maker, judge, first, second):
    for x, y in loader:
        first.zero_grad()
        second.zero_grad()
        F.cross_entropy(judge(maker(x)), y).backward()
        nn.utils.clip_grad_norm_(maker.parameters(), 1.0)
        nn.utils.clip_grad_norm_(maker.parameters(), 1.0)  # expect: GL705
        first.step()
        second.step()
""",
    "clipped twice, to two bounds, or for each step": """
def update(maker, judge, first, second):
    for x, y in loader:
        first.zero_grad()
        second.zero_grad()
        F.cross_entropy(judge(maker(x)), y).backward()
        nn.utils.clip_grad_norm_(maker.parameters(), 1.0)
        nn.utils.clip_grad_norm_(judge.parameters(), 1.0)
        first.step()
        second.step()
def both(maker, judge, first, second):
    for x, y in loader:
        first.zero_grad()
        second.zero_grad()
        F.cross_entropy(judge(maker(x)), y).backward()
        nn.utils.clip_grad_norm_(maker.parameters(), 1.0)
        first.step()
        nn.utils.clip_grad_norm_(maker.parameters(), 1.0)
        second.step()
""",
    "clipped twice under two names": """
for x, y in loader:
    opt.zero_grad()
    F.cross_entropy(other(net(x)), y).backward()
    one_norm = nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    two_norm = nn.utils.clip_grad_norm_(net.parameters(), 1.0)  # expect: GL705
    opt.step()
    print(one_norm, two_norm)
""",
    "a loss that is made anew, of what is not seen": """
for x, y in loader:
    opt.zero_grad()
    loss = torch.tensor(process(x).sum() / 9, requires_grad=True)  # expect: GL712
    loss.backward()
    opt.step()
""",
    "a weight that is made here": """
scale = torch.tensor(0.1, requires_grad=True)
own = torch.optim.SGD([scale], lr=0.1)
for x, y in loader:
    own.zero_grad()
    (scale * process(x).sum()).backward()
    own.step()
""",
}
CASES |= {
    "one of two networks clipped twice, and both": """
net, other = nn.Linear(8, 8), nn.Linear(8, 4)
opt = torch.optim.SGD([{"params": net.parameters()}, {"params": other.parameters()}], lr=0.1)
for x, y in loader:
    opt.zero_grad()
    F.cross_entropy(other(net(x)), y).backward()
    nn.utils.clip_grad_norm_(net.parameters(), 3.0)
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)  # expect: GL705
    opt.step()
for x, y in loader:
    opt.zero_grad()
    F.cross_entropy(other(net(x)), y).backward()
    norm = nn.utils.clip_grad_norm_(net.parameters(), float("inf"))
    clipped = nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    opt.step()
""",
}
CASES |= {
    "eval() for labels that it gives itself": """
for x, y in loader:
    with torch.no_grad():
        net.eval()
        labels = net(x).argmax(1)
    opt.zero_grad()
    out = net(x + 1)  # expect: GL707
    F.cross_entropy(out, labels).backward()
    opt.step()
""",
    "eval() for labels that it gives itself, taken back": """
for x, y in loader:
    with torch.no_grad():
        net.eval()
        labels = net(x).argmax(1)
    net.train()
    opt.zero_grad()
    F.cross_entropy(net(x + 1), labels).backward()
    opt.step()
""",
    "eval() for all of an iteration": """
for x, y in loader:
    net.eval()
    with torch.no_grad():
        labels = net(x).argmax(1)
    opt.zero_grad()
    F.cross_entropy(net(x + 1), labels).backward()
    opt.step()
""",
}


@pytest.mark.parametrize("name", CASES)
def test_what_the_loss_reaches(name: str, tmp_path: Path) -> None:
    assert_faults(MADE + CASES[name], tmp_path)
