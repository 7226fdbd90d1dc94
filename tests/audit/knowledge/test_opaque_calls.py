"""What a call that cannot be followed may do to gradients depends on what it receives and on its name."""

from __future__ import annotations

from pathlib import Path

import pytest
from audited_snippets import HEAD, expected, findings

CASES = {
    "in the branch of what is not done": """
from elsewhere import evaluate_all
def run(train, clip):
    for x, y in loader:
        if train:
            optimizer.zero_grad()
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # expect: GL102
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        else:
            apply_all(model, F.cross_entropy(model(x), y))
""",
    "a rate and a decay of a group are no parameters": """
def run(log):
    for x, y in loader:
        F.cross_entropy(model(x), y).backward()
        optimizer.step()  # expect: GL305
        for group in optimizer.param_groups:
            log.update(lr=group["lr"], decay=group["weight_decay"])
""",
    "a network of the project with an unknown base returns an output": """
from elsewhere import BaseEncoder

class Encoder(BaseEncoder):
    def __init__(self):
        super().__init__()

def main(loader):
    encoder = Encoder()
    optimizer = torch.optim.SGD(encoder.parameters(), lr=0.1)
    for x, y in loader:
        loss = F.mse_loss(encoder(x), y)
        loss.backward()
        optimizer.step()  # expect: GL305
""",
    "a loss object with an unknown base received no optimizer": """
from elsewhere import Objective

class Distance(Objective):
    pass

def main(loader):
    distance = Distance(model)
    for x, y in loader:
        loss = distance.compare(model(x), y)
        loss.backward()
        optimizer.step()  # expect: GL305
""",
    "one that received the optimizer may set gradients to zero": """
from elsewhere import Helper

class Mine(Helper):
    pass

def main(loader):
    helper = Mine(model, optimizer)
    for x, y in loader:
        loss = helper.prepare(x)
        F.mse_loss(model(x), y).backward()
        optimizer.step()
""",
    "a method that is named after a loss returns it": """
from elsewhere import Runner

class Mine(Runner):
    def __init__(self):
        self.net = nn.Linear(8, 4)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)

    def fit(self, loader):
        for x, y in loader:
            loss = self.compute_loss(self.net(x), y)
            loss.backward()
            self.optimizer.step()  # expect: GL305
""",
    "weights are read, and kept": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.one = nn.Linear(8, 4)

    def forward(self, x):
        return self.one(x)

    def fit(self, x, y):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        for _ in range(100):
            F.mse_loss(self(x), y).backward()
            optimizer.step()  # expect: GL305
            best = self.state_dict()
""",
    "a call that receives only the model, and may clear its gradients": """
from elsewhere import clear_all

for x, y in loader:
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
    clear_all(model)
""",
    "an optimizer out of a collection is one and the same": """
def fit(optimizers, scaler, key):
    for x, y in loader:
        with torch.autocast("cuda"):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        optimizers[key].zero_grad()  # expect: GL103
        scaler.step(optimizers[key])
        scaler.update()
""",
    "a scaler that scales nothing": """
from elsewhere import bayes_loss

scaler = torch.amp.GradScaler("cuda")
for x, y in loader:
    loss = 0.5 * bayes_loss(model, x, y)
    optimizer.zero_grad()
    loss.backward()  # expect: GL207
    scaler.step(optimizer)
    scaler.update()
""",
    "a loss that is scaled in one case": """
from elsewhere import bayes_loss

def fit(scaler, half):
    for x, y in loader:
        loss = 0.5 * bayes_loss(model, x, y)
        optimizer.zero_grad()
        if half:
            scaler.scale(loss).backward()
        else:
            loss.backward()
        scaler.step(optimizer)
        scaler.update()
""",
    "a schedule before the step in a function of one batch": """
class Trainer:
    def __init__(self):
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 10)

    def batch(self, x, y):
        self.optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        self.schedule.step()  # expect: GL402
        self.optimizer.step()
""",
    "a call that receives only the model, by its name to show it": """
from elsewhere import gen_examples

for x, y in loader:
    F.cross_entropy(model(x), y).backward()
    optimizer.step()  # expect: GL305
    gen_examples(model, x)
""",
    "a schedule that is called with the optimizer": """
from elsewhere import Poly

lr_scheduler = Poly(0.1)
for i, (x, y) in enumerate(loader):
    lr_scheduler(optimizer, i)
    F.cross_entropy(model(x), y).backward()
    optimizer.step()  # expect: GL305
""",
    "an optimizer that only a scaler steps": """
class Trainer:
    def __init__(self, **given):
        self.net, self.opt = given["net"], given["opt"]
        self.scaler = torch.amp.GradScaler("cuda")
    def fit(self):
        for x, y in loader:
            with torch.autocast("cuda"):
                loss = F.cross_entropy(self.net(x), y)
            self.scaler.scale(loss).backward()
            self.scaler.step(self.opt)  # expect: GL305
            self.scaler.update()
""",
}


@pytest.mark.parametrize("name", CASES)
def test_an_opaque_call_may_do_what_it_receives_and_is_named_for(name: str, tmp_path: Path) -> None:
    text = HEAD + CASES[name]
    assert findings(text, tmp_path) == expected(text)
