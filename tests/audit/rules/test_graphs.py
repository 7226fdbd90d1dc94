"""Losses without a graph, graphs that are used twice, and steps of weights that no loss comes from."""

from __future__ import annotations

import pytest
from audited_snippets import assert_faults

GAN = """
maker, judge = nn.Linear(8, 8), nn.Linear(8, 1)
first = torch.optim.SGD(judge.parameters(), lr=0.1)
second = torch.optim.SGD(maker.parameters(), lr=0.1)
for x, y in loader:
    made = maker(x)
    first.zero_grad()
    {first}
    first.step()
    second.zero_grad()
    {second}
    second.step()
"""
TRAINER = """
from transformers import Trainer
class Mine(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False):
        labels = inputs.pop("labels")
        out = model(**inputs)
        loss = F.cross_entropy(out["logits"]{made}, labels)
        return (loss, out) if return_outputs else loss
"""
LIGHTNING = """
from lightning import LightningModule
class Mine(LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(8, 4)
    def training_step(self, batch, batch_idx):
        x, y = batch
        terms = {{"a": F.cross_entropy(self.net(x), y)}}
        loss = sum({made} for v in terms.values())
        return {{"loss": loss}}
"""
LOOP = """
for x, y in loader:
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    {backward}
    optimizer.step()
"""
CASES = {
    "a detached loss": LOOP.format(backward="loss.detach().backward()  # expect: GL712"),
    "the best of the outputs": LOOP.format(backward="model(x).max(1).values.mean().backward()"),
    "a copy of a loss": LOOP.format(backward="torch.tensor(loss).backward()  # expect: GL712"),
    "the data of a loss": LOOP.format(backward="loss.data.backward()  # expect: GL712"),
    "values that are joined, or put into a tensor, behind detach()": """
other = nn.Linear(8, 4)
for x, y in loader:
    optimizer.zero_grad()
    joined, filled, goal = torch.empty(0), torch.empty(2), torch.zeros(2)
    values = model(x).detach()  # expect: GL712
    for i in range(2):
        joined = torch.cat((joined, values[i]))
        filled[i] = torch.sum(x[i])
    F.mse_loss(input=joined.squeeze(), target=filled.squeeze()).backward()
    optimizer.step()
for x, y in loader:
    optimizer.zero_grad()
    filled, goal = torch.empty(2), other(x).detach()
    for i in range(2):
        filled[i] = model(x[i])
    F.mse_loss(filled.squeeze(), goal).backward()
    optimizer.step()
""",
    "a loss and a term that is only shown": LOOP.format(backward="(loss + loss.detach()).backward()"),
    "a loss of detached outputs": """
for x, y in loader:
    optimizer.zero_grad()
    x = x.to("cuda")
    out = model(x).detach()  # expect: GL712
    F.cross_entropy(out, y).backward()
    optimizer.step()
""",
    "a loss of detached outputs, shifted": """
for x, y in loader:
    optimizer.zero_grad()
    shares = F.log_softmax(model(x).detach(), dim=-1) + 1e-8  # expect: GL712
    F.nll_loss(shares, y).backward()
    optimizer.step()
""",
    "a network that is not known, in no_grad": """
from somewhere import make
net = make()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for x, y in loader:
    opt.zero_grad()
    with torch.no_grad():
        out = net(x)  # expect: GL712
    F.cross_entropy(out, y).backward()
    opt.step()
""",
    "detached inputs that need a gradient": """
for x, y in loader:
    optimizer.zero_grad()
    inner = model[0](x).detach()
    inner.requires_grad_()
    F.cross_entropy(inner, y).backward()
    optimizer.step()
""",
    "detached features of another network": """
from somewhere import head
for x, y in loader:
    optimizer.zero_grad()
    features = model(x).detach()
    head(features).mean().backward()
    optimizer.step()
""",
    "no gradient under a condition": """
def run(train):
    for x, y in loader:
        optimizer.zero_grad()
        with torch.set_grad_enabled(train):
            loss = F.cross_entropy(model(x), y)
        if train:
            loss.backward()
            optimizer.step()
run(True)
run(False)
""",
    "detached in a trainer": TRAINER.replace("{made}", ".detach()  # expect: GL712\n       ").replace(
        "labels)\n", "labels)\n"
    ),
    "a trainer": TRAINER.format(made=""),
    "a module's detached terms": LIGHTNING.format(made="v.detach()").replace("values())", "values())  # expect: GL712"),
    "a module's terms": LIGHTNING.format(made="v"),
    "made once, judged twice": GAN.format(
        first="judge(made).mean().backward()", second="judge(made).sum().backward()  # expect: GL719"
    ),
    "made once, measured, and judged twice": GAN.format(
        first="size, rest = measure(made, y); (size + rest + judge(made).mean()).backward()",
        second="judge(made).sum().backward()  # expect: GL719",
    ),
    "made once, detached for the judge": GAN.format(
        first="judge(made.detach()).mean().backward()", second="judge(made).sum().backward()"
    ),
    "made once, and the graph kept": GAN.format(
        first="judge(made).mean().backward(retain_graph=True)", second="judge(made).sum().backward()"
    ),
    "made again": GAN.format(
        first="judge(made).mean().backward()", second="made = maker(x); judge(made).sum().backward()"
    ),
    "made once, perhaps wrapped, and judged twice": GAN.format(
        first="judge(made).mean().backward()", second="judge(made).sum().backward()  # expect: GL719"
    ).replace("for x", "if len(loader) > 9:\n    maker = nn.parallel.DistributedDataParallel(maker)\nfor x"),
    "a distribution of the program's own, and PyTorch's": """
actor, critic = nn.Linear(8, 8), nn.Linear(8, 1)
first = torch.optim.SGD(actor.parameters(), lr=0.1)
for x, y in loader:
    action = actor(x).sample(clip=0.3)
    loss = -critic(action).mean()
    first.zero_grad()
    loss.backward()
    first.step()
for x, y in loader:
    loss = -critic(actor(x).sample()).mean()
    first.zero_grad()
    loss.backward()
    first.step()  # expect: GL701
""",
    "two parts of one result": GAN.format(
        first="judge(made[0]).mean().backward()", second="judge(made[1]).sum().backward()"
    ),
    "two losses of frozen features": """
base, one, two = nn.Linear(8, 8), nn.Linear(8, 4), nn.Linear(8, 4)
opt = torch.optim.SGD([*one.parameters(), *two.parameters()], lr=0.1)
base.requires_grad_(False)
for x, y in loader:
    opt.zero_grad()
    features = base(x)
    F.cross_entropy(one(features), y).backward()
    F.cross_entropy(two(features), y).backward()
    opt.step()
""",
    "an optimizer of another model": """
other = nn.Linear(8, 4)
optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
for x, y in loader:
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()  # expect: GL701
""",
    "an optimizer of a part": """
optimizer = torch.optim.SGD(model[2].parameters(), lr=0.1)
for x, y in loader:
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
""",
    "an optimizer of a part of two models": """
base, one, two = nn.Linear(8, 8), nn.Linear(8, 4), nn.Linear(8, 4)
first, second = nn.Sequential(base, one), nn.Sequential(base, two)
optimizer = torch.optim.SGD(base.parameters(), lr=0.1)
for x, y in loader:
    optimizer.zero_grad()
    F.cross_entropy(second(x), y).backward()
    optimizer.step()
""",
    "an optimizer of what a loss of the project's receives": """
from somewhere import distance
other = nn.Linear(8, 4)
optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
for x, y in loader:
    optimizer.zero_grad()
    (F.cross_entropy(model(x), y) + distance(model(x), x)).backward()
    optimizer.step()
""",
    "a state that goes on with its graph, and one that is cut, by the loop or by the network, or perhaps": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.head = nn.GRU(8, 8), nn.Linear(8, 4)
        self.init_weights()
    def init_weights(self):
        self.head.weight.data.uniform_(-0.1, 0.1)
    def forward(self, x, state):
        out, state = self.rnn(x, state)
        return self.head(out), state
class Cutting(Net):
    def forward(self, x, state):
        out, state = super().forward(x, state)
        return out, state.detach()
def fit(net):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    state = None
    for x, y in loader:
        optimizer.zero_grad()
        out, state = net(x, state)
        F.cross_entropy(out, y).backward()  # expect: GL719
        optimizer.step()
fit(Net())
def cut(net):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    state = None
    for x, y in loader:
        optimizer.zero_grad()
        out, state = net(x, state)
        F.cross_entropy(out, y).backward()
        optimizer.step()
cut(Cutting())
def each(net):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    state = None
    for x, y in loader:
        optimizer.zero_grad()
        state = state.detach() if state is not None else None
        out, state = net(x, state)
        F.cross_entropy(out, y).backward()
        optimizer.step()
each(Net())
from elsewhere import Memory
def remembers():
    net = Memory(8)
    net.train()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    memories = None
    for i, (x, y) in enumerate(loader):
        if i % 50 == 0:
            memories = None
        optimizer.zero_grad()
        out, memories = net(x, memories)
        F.cross_entropy(out, y).backward()
        optimizer.step()
remembers()
rnn = nn.LSTM(8, 4)
optimizer = torch.optim.SGD(rnn.parameters(), lr=0.1)
h, c = torch.zeros(1, 4), torch.zeros(1, 4)
for x, y in loader:
    optimizer.zero_grad()
    out, (h, c) = rnn(x, (h, c))
    F.cross_entropy(out, y).backward()  # expect: GL719
    optimizer.step()
""",
    "a score that a loss of the project's has used": GAN.format(
        first="score = judge(made).mean(); criterion(score).backward()",
        second="(1 - score).backward()  # expect: GL719",
    ).replace("for x, y", "from somewhere import Loss\ncriterion = Loss()\nfor x, y"),
}


CASES |= {
    "all forward passes are in no_grad, and the loss is made elsewhere": """
from elsewhere import masked_error
for x, y in loader:
    optimizer.zero_grad()
    with torch.no_grad():
        out = model(x)  # expect: GL712
    loss = masked_error(out.transpose(0, 1), y, 0.0)
    loss.backward()
    optimizer.step()
for x, y in loader:
    optimizer.zero_grad()
    with torch.no_grad():
        out = model(x)
    loss = masked_error(model(x), out)
    loss.backward()
    optimizer.step()
def methods(my_model, opt):
    my_model.train()
    for x, y in loader:
        loss = masked_error(my_model.logits(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        with torch.no_grad():
            print(my_model(x))
def critic(generator, discriminator, opt):
    generator.train()
    discriminator.train()
    for x, y in loader:
        opt.zero_grad()
        with torch.no_grad():
            made = generator(x)
        discriminator(made).mean().backward()
        opt.step()
""",
    "one loss goes backward twice": """
for x, y in loader:
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    (loss * 2).backward()  # expect: GL719
    optimizer.step()
for x, y in loader:
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward(retain_graph=True)
    loss.backward()
    optimizer.step()
""",
    "two losses of one part of an output": """
def fit(generator, discriminator, first, second):
    generator.train()
    for x, y in loader:
        made = generator(x)
        first.zero_grad()
        discriminator(made["image"]).mean().backward()
        first.step()
        second.zero_grad()
        discriminator(made["image"]).pow(2).mean().backward()  # expect: GL719
        second.step()
def parted(generator, discriminator, first, second):
    generator.train()
    for x, y in loader:
        made = generator(x)
        first.zero_grad()
        discriminator(made["image"]).mean().backward()
        first.step()
        second.zero_grad()
        discriminator(made["sound"]).pow(2).mean().backward()
        second.step()
""",
    "one loss, computed for each word in two chains": """
for x, y in loader:
    if kind == "soft":
        loss = F.cross_entropy(model(x), y)
    elif kind == "angle":
        loss = F.mse_loss(model(x), y)
    elif kind in ["arc", "sub"]:
        loss = F.l1_loss(model(x), y)
    elif kind == "ring":
        loss = F.nll_loss(model(x), y)
    elif kind == "mean":
        loss = F.smooth_l1_loss(model(x), y)
    elif kind == "huber":
        loss = F.huber_loss(model(x), y)
    elif kind == "center":
        loss = F.kl_div(model(x), y)
    loss.backward()
    optimizer.first_step(zero_grad=True)
    if kind == "soft":
        loss = F.cross_entropy(model(x), y)
    elif kind == "angle":
        loss = F.mse_loss(model(x), y)
    elif kind in ["arc", "sub", "variance"]:
        loss = F.l1_loss(model(x), y)
    elif kind == "ring":
        loss = F.nll_loss(model(x), y)
    elif kind == "mean":
        loss = F.smooth_l1_loss(model(x), y)
    elif kind == "huber":
        loss = F.huber_loss(model(x), y)
    elif kind == "center":
        loss = F.kl_div(model(x), y)
    loss.backward()
    optimizer.second_step(zero_grad=True)
""",
    "probabilities as logits": """
net = nn.Sequential(nn.Linear(8, 4), nn.Softmax(dim=-1))
optimizer = torch.optim.SGD([*model.parameters(), *net.parameters()], lr=0.1)
criterion, binary = nn.CrossEntropyLoss(), nn.BCEWithLogitsLoss()
for x, y in loader:
    optimizer.zero_grad()
    out = model(x)
    loss = criterion(torch.softmax(out, dim=1), y)  # expect: GL609
    loss = loss + criterion(net(x), y)  # expect: GL609
    loss = loss + binary(out.sigmoid(), y)  # expect: GL609
    loss = loss + F.nll_loss(F.softmax(out, -1), y)  # expect: GL609
    loss = loss + F.nll_loss(out.view(-1, 4), y)  # expect: GL609
    loss = loss + F.binary_cross_entropy(out[:, 0], y)  # expect: GL609
    loss = loss + F.nll_loss(out - out.logsumexp(-1, keepdim=True), y) + F.binary_cross_entropy(out.clamp(0, 1), y)
    loss.backward()
    optimizer.step()
""",
    "networks that are changed after they are made": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 4)
        self.register_forward_hook(lambda net, given, out: F.log_softmax(out, 1))
    def forward(self, x):
        return self.body(x)
net, one, two = Net(), nn.Sequential(nn.Linear(8, 4)), nn.Sequential(nn.Linear(8, 4))
one.append(nn.LogSoftmax(1))
two.add_module("end", nn.LogSoftmax(1))
optimizer = torch.optim.SGD([p for part in (net, one, two, nn.Linear(8, 4), model) for p in part.parameters()], lr=0.1)
each = (model.zero_grad, model.forward)
for x, y in loader:
    model.zero_grad()
    optimizer.zero_grad()
    loss = F.nll_loss(net(x), y) + F.nll_loss(one(x), y) + F.nll_loss(two(x), y) + model.forward(x).mean()
    loss.backward()
    optimizer.step()
""",
    "layers that are called softmax": """
class Net(nn.Module):
    def __init__(self, last):
        super().__init__()
        self.body, self.softmax = nn.Linear(8, 4), last
    def forward(self, x):
        return self.softmax(self.body(x))
class Logs(Net):
    def __init__(self):
        super().__init__(None)
        self.softmax = nn.LogSoftmax(1)
class Shares(Net):
    def __init__(self):
        super().__init__(None)
        self.softmax = nn.Softmax(1)
logs, shares = Logs(), Shares()
optimizer = torch.optim.SGD([*logs.parameters(), *shares.parameters()], lr=0.1)
for x, y in loader:
    optimizer.zero_grad()
    loss = F.nll_loss(logs(x), y)
    loss = loss + F.nll_loss(shares(x), y)  # expect: GL609
    loss.backward()
    optimizer.step()
""",
    "probabilities of a dictionary": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 4)
    def forward(self, x):
        out = self.body(x)
        return {"logits": out, "probs": out.softmax(-1), "log": torch.log(out.softmax(-1))}
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for x, y in loader:
    optimizer.zero_grad()
    out = net(x)
    loss = F.cross_entropy(out["logits"], y) + F.nll_loss(out["probs"], y)  # expect: GL609
    loss.backward()
    optimizer.step()
""",
    "logits, multiples of probabilities, and what may be either": """
class Net(nn.Module):
    def __init__(self, ends):
        super().__init__()
        self.body = nn.Linear(8, 4)
        self.end = nn.Softmax(-1) if ends else nn.Identity()
    def forward(self, x, probabilities=False):
        if probabilities:
            x = F.softmax(self.body(x), -1)
        else:
            x = self.body(x)
        return x
    def ended(self, x):
        return self.end(self.body(x))
def fit(net, ends, rate):
    other = nn.Sequential(nn.Linear(8, 4), nn.Softmax(-1) if ends else nn.Identity())
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(10 * out.sigmoid(), y) + F.nll_loss(F.log_softmax(out, -1), y)
        loss = loss + F.cross_entropy(net(x, rate), y) + F.cross_entropy(net.ended(x), y)
        if rate:
            ended = out.softmax(-1)
        else:
            ended = out
        loss = loss + F.cross_entropy(ended, y) + F.cross_entropy(ended.view(-1, 4), y)
        loss = loss + F.cross_entropy(other(x), y) + F.cross_entropy(out, F.softmax(y, -1))
        loss.backward()
        optimizer.step()
def main(args):
    net = Net(args.ends)
    optimizer.add_param_group({"params": net.parameters()})
    fit(net, args.ends, args.rate)
""",
    "targets that are not detached": """
value, policy = nn.Linear(8, 1), nn.Linear(8, 4)
agent = torch.optim.SGD([*value.parameters(), *policy.parameters()], lr=0.1)
for x, after, reward, done in loader:
    target = reward + 0.9 * value(after) * done
    loss = F.smooth_l1_loss(value(x), target)  # expect: GL718
    loss = loss + F.mse_loss(target, value(x))  # expect: GL718
    later, gamma = value(after).max(1).values.unsqueeze(1), 0.9
    loss = loss + F.mse_loss(value(x), (reward + gamma * later).unsqueeze(1))  # expect: GL718
    loss = loss + (reward + gamma * later - value(x)).pow(2).mean()  # expect: GL718
    loss = loss + ((value(x) - (reward + gamma * later)) ** 2).mean()  # expect: GL718
    agent.zero_grad()
    loss.backward()
    agent.step()
""",
    "targets of a copy, detached advantages, and a step along a flow": """
import copy
value, policy = nn.Linear(8, 1), nn.Linear(8, 4)
frozen = copy.deepcopy(value)
agent = torch.optim.SGD([*value.parameters(), *policy.parameters()], lr=0.1)
for x, after, reward, done in loader:
    target = reward + 0.9 * frozen(after) * done
    loss = F.mse_loss(value(x), target) + F.mse_loss(value(x), value(after) + 0.1 * value(x))
    loss = loss + F.mse_loss(value(x), value(after)) + F.mse_loss(value(x), (reward + 0.9 * value(after)).detach())
    chosen = torch.distributions.Categorical(policy(x))
    gain = reward - value(x)
    loss = loss - (chosen.log_prob(chosen.sample()) * gain.detach()).mean() + gain.square().mean()
    loss = loss - (F.log_softmax(value(x) - reward, -1) * F.log_softmax(policy(x), -1)).mean()
    loss = loss + F.mse_loss(value(x), reward * (0.9 * value(after)))
    loss = loss + (value(x) - (1 - 0.1 * done) * value(after) - reward).square().mean()
    gamma = 0.9
    loss = loss + (value(x) - (reward + gamma * value(after)).detach()).square().mean()
    loss = loss + ((F.log_softmax(policy(x), -1) - reward) * F.log_softmax(policy(x), -1)).mean()
    agent.zero_grad()
    loss.backward()
    agent.step()
""",
}
CASES |= {
    "probabilities as logits, in a function that returns the loss": """
def part_loss(net, x, y, robust):
    out = net(x)
    share = F.softmax(out, dim=1)
    if robust:
        return F.cross_entropy(share, y)  # expect: GL609
    fct = nn.BCEWithLogitsLoss()
    return fct(torch.sigmoid(out), y) + F.cross_entropy(out, F.softmax(y, dim=1))  # expect: GL609
def either_loss(out, y, squared):
    if squared:
        out = torch.sigmoid(out)
        return F.mse_loss(out, y)
    return F.binary_cross_entropy_with_logits(out, y)
def squeezed_loss(net, x, y):
    first, second = net(x).split(2)
    first = first.squeeze(-1)
    share = torch.softmax(first, -1)
    share = share.squeeze(-1)
    return F.cross_entropy(first, y) + F.cross_entropy(second, y) - share.mean()
def evaluate_likelihood(net, x, y):
    return F.cross_entropy(net(x).softmax(-1), y)
def other_loss(net, x, y):
    with torch.no_grad():
        shown = F.cross_entropy(net(x).softmax(-1), y)
    return F.cross_entropy(net(x), y), shown
""",
}
CASES |= {
    "two networks that are handed in, with an optimizer each": """
def train(generator, critic, first, second, data):
    for x in data:
        fake = generator(x)
        second.zero_grad()
        (critic(fake).mean() - critic(x).mean()).backward()
        second.step()
        first.zero_grad()
        (-critic(fake).mean()).backward()  # expect: GL719
        first.step()
""",
    "a network that is handed in, under two heads with an optimizer each": """
def train(backbone, net, module, first, second, data):
    for x in data:
        seen = backbone(x)
        second.zero_grad()
        net(seen).mean().backward()
        second.step()
        first.zero_grad()
        module(seen).mean().backward()
        first.step()
""",
}

BY_ACCELERATOR = """
from accelerate import Accelerator
from lightning.fabric import Fabric
helper = {helper}()
"""
THROUGH = BY_ACCELERATOR + GAN.format(
    first="helper.backward({first})", second="helper.backward(judge(made).sum()){mark}"
)
CASES |= {
    f"{how}, by {helper}": THROUGH.format(helper=helper, first=first, mark=mark).replace(
        "for x",
        f"judge, first = helper.{word}(judge, first)\nmaker, second = helper.{word}(maker, second)\nfor x",
    )
    for helper, word in (("Accelerator", "prepare"), ("Fabric", "setup"))
    for how, first, mark in (
        ("made once, judged twice", "judge(made).mean()", "  # expect: GL719"),
        ("made once, detached for the judge", "judge(made.detach()).mean()", ""),
        ("made once, and the graph kept", "judge(made).mean(), retain_graph=True", ""),
    )
}

MODES = """
class Game(nn.Module):
    def __init__(self):
        super().__init__()
        self.judge = nn.Linear(8, 1)
    def forward(self, made, mode):
        if mode == 0:
            return -self.judge(made).mean()
        if mode == 1:
            return self.judge(made{cut}).mean()
maker, game = nn.Linear(8, 8), Game()
first = torch.optim.SGD(maker.parameters(), lr=0.1)
second = torch.optim.SGD(game.judge.parameters(), lr=0.1)
for x, y in loader:
    made = maker(x)
    first.zero_grad()
    game(made, 0).backward()
    first.step()
    second.zero_grad()
    game(made, 1).backward(){mark}
    second.step()
"""
CASES |= {
    "a loss that cuts the graph in one of its modes": MODES.format(cut=".detach()", mark=""),
    "a loss that cuts it in none": MODES.format(cut="", mark="  # expect: GL719"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_graph_leads_from_the_loss_to_the_weights(name, tmp_path):
    assert_faults(CASES[name], tmp_path)
