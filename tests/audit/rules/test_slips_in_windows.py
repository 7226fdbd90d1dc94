"""Zeroing, clipping and dividing in scripts as people write them: each slip beside its right twin."""

from __future__ import annotations

import pytest
from audited_snippets import assert_faults

CASES = {
    "the second of two optimizers that are handed in steps, and then its network is clipped": """
def update(policy, value, policy_optimizer, value_optimizer, x, y):
    for _ in range(3):
        value_optimizer.zero_grad()
        F.mse_loss(value(x), y).backward()
        value_optimizer.step()
    policy_optimizer.zero_grad()
    (-policy.get_log_prob(x) * y).mean().backward()
    policy_optimizer.step()
    torch.nn.utils.clip_grad_norm_(policy.parameters(), 40)  # expect: GL101
""",
    "the second of two optimizers that are handed in steps after its network is clipped": """
def update(policy, value, policy_optimizer, value_optimizer, x, y):
    for _ in range(3):
        value_optimizer.zero_grad()
        F.mse_loss(value(x), y).backward()
        value_optimizer.step()
    policy_optimizer.zero_grad()
    (-policy.get_log_prob(x) * y).mean().backward()
    torch.nn.utils.clip_grad_norm_(policy.parameters(), 40)
    policy_optimizer.step()
""",
    "the first of two optimizers steps before the network of the second is clipped, which steps then": """
def update(policy, value, policy_optimizer, value_optimizer, x, y):
    policy_optimizer.zero_grad()
    value_optimizer.zero_grad()
    (F.mse_loss(value(x), y) - policy.get_log_prob(x).mean()).backward()
    policy_optimizer.step()
    torch.nn.utils.clip_grad_norm_(value.parameters(), 40)
    value_optimizer.step()
""",
    "zeroed between the two losses of each micro-batch, behind a check of the second": """
def train(n):
    for i, (x, y) in enumerate(loader):
        (F.cross_entropy(model(x), y) / n).backward()
        other = F.cross_entropy(model(-x), y)
        if torch.isnan(other):
            optimizer.zero_grad()
            continue
        optimizer.zero_grad()  # expect: GL306
        (other / n).backward()
        if (i + 1) % n == 0:
            optimizer.step()
""",
    "a batch whose loss is not finite is thrown away with its window": """
def train(n):
    for i, (x, y) in enumerate(loader):
        loss = F.cross_entropy(model(x), y) / n
        loss.backward()
        if torch.isnan(loss):
            optimizer.zero_grad()
            continue
        if (i + 1) % n == 0:
            optimizer.step()
            optimizer.zero_grad()
""",
    "what a class that is not seen records": """
from experiments import Experiment
class Mine(Experiment):
    def setup(self):
        self.net = nn.Linear(8, 4)
        self.optimizer = torch.optim.Adam(self.net.parameters())
    def train(self):
        for x, y in loader:
            loss = F.cross_entropy(self.net(x), y)
            loss.backward()
            self.optimizer.step()  # expect: GL305
            self.add_result(value=loss.item(), name="loss")
            self.log.show_image_grid(x, name="data")
""",
    "a class that is not seen does more": """
from experiments import Experiment
class Mine(Experiment):
    def setup(self):
        self.net = nn.Linear(8, 4)
        self.optimizer = torch.optim.Adam(self.net.parameters())
    def train(self):
        for x, y in loader:
            loss = F.cross_entropy(self.net(x), y)
            loss.backward()
            self.optimizer.step()
            self.finish(loss)
""",
    "gradients times 1 / n after each micro-batch": """
def train(n):
    for i, (x, y) in enumerate(loader):
        F.cross_entropy(model(x), y).backward()
        for p in model.parameters():
            p.grad.mul_(1 / n)  # expect: GL303
        if (i + 1) % n == 0:
            optimizer.step()
            optimizer.zero_grad()
""",
    "gradients times a mask after each micro-batch": """
def train(n, mask):
    for i, (x, y) in enumerate(loader):
        (F.cross_entropy(model(x), y) / n).backward()
        for p in model.parameters():
            p.grad.mul_(mask[p])
        if (i + 1) % n == 0:
            optimizer.step()
            optimizer.zero_grad()
""",
    "divided by n, and times 1 / n": """
def train(n):
    share = 1 / n
    for i, (x, y) in enumerate(loader):
        loss = F.cross_entropy(model(x), y) / n
        (loss * share).backward()  # expect: GL302
        if (i + 1) % n == 0:
            optimizer.step()
            optimizer.zero_grad()
""",
    "times 1 / n alone": """
def train(n):
    share = 1 / n
    for i, (x, y) in enumerate(loader):
        (F.cross_entropy(model(x), y) * share).backward()
        if (i + 1) % n == 0:
            optimizer.step()
            optimizer.zero_grad()
""",
    "clipped behind a step that a flag may pass over": """
def train(args):
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        if not args.freeze:
            optimizer.step()
        if args.clip > 0:
            torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)  # expect: GL101
""",
    "clipped before a step that a flag may pass over": """
def train(args):
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        if args.clip > 0:
            torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        if not args.freeze:
            optimizer.step()
""",
    "a mean over samples of sums over their features, less the data": """
def train(net, device, n):
    for i, (x, y) in enumerate(loader):
        x = x.to(device)
        out = model(x)
        errors = torch.sum((out - x) ** 2, dim=tuple(range(1, out.dim())))
        loss = torch.mean(errors)
        loss.backward()  # expect: GL301
        if (i + 1) % n == 0 or i + 1 == len(loader):
            optimizer.step()
            optimizer.zero_grad()
""",
    "another term of unknown making is subtracted": """
from elsewhere import penalty
def train(net, n):
    for i, (x, y) in enumerate(loader):
        other = penalty(y, n)
        loss = torch.mean((model(x) - other) ** 2)
        loss.backward()
        if (i + 1) % n == 0 or i + 1 == len(loader):
            optimizer.step()
            optimizer.zero_grad()
""",
    "autograd's own function": """
for x, y in loader:
    torch.autograd.backward(F.cross_entropy(model(x), y))
    optimizer.step()  # expect: GL305
for x, y in loader:
    torch.autograd.backward(F.cross_entropy(model(x), y))
    optimizer.step()
    optimizer.zero_grad()
""",
    "ignite's engine calls it for each batch, and a handler": """
from ignite.engine import Engine, Events
def main(net, opt):
    def update(engine, batch):
        loss = F.cross_entropy(net(batch[0]), batch[1])
        loss.backward()
        opt.step()
        return loss.item()
    trainer = Engine(update)
    trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda engine: opt.zero_grad())
    trainer.run(loader)
""",
    "networks and optimizers in dictionaries, clipped behind the steps": """
nets = {"a": nn.Linear(8, 4), "b": nn.Linear(8, 4)}
optimizers = {name: torch.optim.Adam(net.parameters()) for name, net in nets.items()}
for x, y in loader:
    for one in optimizers.values():
        one.zero_grad()
    F.cross_entropy(nets["a"](x) + nets["b"](x), y).backward()
    for one in optimizers.values():
        one.step()
    for net in nets.values():
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)  # expect: GL101
""",
    "networks and optimizers in dictionaries, clipped before the steps": """
nets = {"a": nn.Linear(8, 4), "b": nn.Linear(8, 4)}
optimizers = {name: torch.optim.Adam(net.parameters()) for name, net in nets.items()}
for x, y in loader:
    for one in optimizers.values():
        one.zero_grad()
    F.cross_entropy(nets["a"](x) + nets["b"](x), y).backward()
    for net in nets.values():
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    for one in optimizers.values():
        one.step()
""",
    "a norm that is looked at behind the step": """
for x, y in loader:
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
    print(nn.utils.clip_grad_norm_(model.parameters(), float("inf")))
""",
    "half of a loss, and the other one divided by the window's length": """
def train(judge, args):
    judge_optimizer = torch.optim.Adam(judge.parameters())
    for i, (x, y) in enumerate(loader):
        loss = F.mse_loss(model(x), y) / args.accumulation
        loss.backward()
        of_judge = (F.mse_loss(judge(x), y) + F.mse_loss(judge(-x), -y)) / 2
        of_judge.backward()  # expect: GL301
        if (i + 1) % args.accumulation == 0 or i + 1 == len(loader):
            optimizer.step()
            optimizer.zero_grad()
            judge_optimizer.step()
            judge_optimizer.zero_grad()
""",
    "both divided by a number that is the window's length": """
def train(judge, args):
    judge_optimizer = torch.optim.Adam(judge.parameters())
    for i, (x, y) in enumerate(loader):
        loss = F.mse_loss(model(x), y) / 4
        loss.backward()
        of_judge = F.mse_loss(judge(x), y) / 4
        of_judge.backward()
        if (i + 1) % args.accumulation == 0 or i + 1 == len(loader):
            optimizer.step()
            optimizer.zero_grad()
            judge_optimizer.step()
            judge_optimizer.zero_grad()
""",
}


@pytest.mark.parametrize("name", CASES)
def test_marked_lines_are_found_and_no_other_fault(name, tmp_path):
    assert_faults(CASES[name], tmp_path)
