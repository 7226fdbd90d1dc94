"""Correct code whose gradients, networks or settings come from elsewhere: copies, shares, wrappers, changed settings."""

from __future__ import annotations

import pytest
from audited_snippets import assert_faults

CASES = {
    "autocast switched by a setting that may be changed": """
def configured(config, args):
    if args.disable_amp:
        config.amp = False
    return config
def train(args, base):
    config = configured(base.clone(), args)
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", enabled=config.amp):
            output = model(x)
        scaler.scale(F.cross_entropy(output, y)).backward()
        scaler.step(optimizer)
        scaler.update()
""",
    "clipped gradients that other weights share": """
def share(net, shared):
    for one, other in zip(net.parameters(), shared.parameters()):
        if other.grad is not None:
            return
        other._grad = one.grad
def worker(Net):
    shared, net = nn.Linear(8, 4), nn.Linear(8, 4)
    opt = torch.optim.Adam(shared.parameters())
    for x, y in loader:
        net.load_state_dict(shared.state_dict())
        opt.zero_grad()
        F.cross_entropy(net(x), y).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        share(net, shared)
        opt.step()
""",
    "an optimizer of an unseen class that zeroes before each step": """
class Trainer:
    def __init__(self, net):
        self.net = net
    def train(self):
        for x, y in loader:
            rate = self.optimizer.pre_step(self.count)
            loss = F.cross_entropy(self.net(x), y)
            loss.backward()
            self.optimizer.step()
""",
    "gradients filled by hand": """
for x, y in loader:
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    for p in model.parameters():
        p.grad.fill_(0.01)
    optimizer.step()
""",
    "gradients filled with nothing": """
for x, y in loader:
    F.cross_entropy(model(x), y).backward()
    for p in model.parameters():
        p.grad.fill_(0)  # expect: GL103
    optimizer.step()
""",
    "an attack on a copy": """
import copy
def attacked(net, image, rate):
    net = copy.deepcopy(net)
    image = image.clone().requires_grad_()
    output = net(image)
    for i in range(rate):
        loss = F.mse_loss(output, torch.zeros_like(output))
        loss.backward()
        image = image.detach() - torch.sign(image.grad)
        output = net(image.requires_grad_())
    return image
for x, y in loader:
    image = attacked(model, x, 4)
    optimizer.zero_grad()
    F.cross_entropy(model(image), y).backward()
    optimizer.step()
""",
    "the loss function of what is wrapped": """
from accelerate import Accelerator
accelerator = Accelerator()
net, opt = accelerator.prepare(torch.nn.Linear(8, 4), optimizer)
inside = accelerator.unwrap_model(net)
for x, y in loader:
    opt.zero_grad()
    accelerator.backward(inside.loss_function(net(x), y))
    opt.step()
""",
    "networks of a checkpoint or new": """
def train(checkpoint):
    if checkpoint is None:
        net = nn.Linear(8, 4)
        opt = torch.optim.SGD(net.parameters(), lr=0.1)
    else:
        net, opt = checkpoint["net"], checkpoint["opt"]
    net = net.to("cpu")
    for x, y in loader:
        opt.zero_grad()
        F.cross_entropy(net(x), y).backward()
        opt.step()
""",
}


@pytest.mark.parametrize("name", CASES)
def test_marked_lines_are_found_and_no_other_fault(name, tmp_path):
    assert_faults(CASES[name], tmp_path)
