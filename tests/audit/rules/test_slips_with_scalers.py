"""Loss scales in scripts as people write them: each slip beside its right twin."""

from __future__ import annotations

import pytest
from audited_snippets import assert_faults

SCALER_CLASS = """
class NativeScaler:
    def __init__(self):
        self.scaler = torch.amp.GradScaler("cuda")
    def __call__(self, loss, optimizer, clip_grad=None, parameters=None, update_grad=True):
        self.scaler.scale(loss).backward()
"""
CASES = {
    "a scaler of one's own clips whatever it is given, before it knows whether an update is due": SCALER_CLASS
    + """
        if clip_grad is not None:
            self.scaler.unscale_(optimizer)  # expect: GL203
            torch.nn.utils.clip_grad_norm_(parameters, clip_grad)  # expect: GL304
        else:
            self.scaler.unscale_(optimizer)  # expect: GL203
        if update_grad:
            self.scaler.step(optimizer)
            self.scaler.update()
""",
    "a scaler of one's own clips where an update is due": SCALER_CLASS
    + """
        if update_grad:
            if clip_grad is not None:
                self.scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(parameters, clip_grad)
            self.scaler.step(optimizer)
            self.scaler.update()
""",
    "of a critic's two losses, each of a pass of its own, one is scaled": """
critic, scaler = nn.Linear(8, 1), torch.amp.GradScaler("cuda")
critic_optimizer = torch.optim.Adam(critic.parameters())
for x, y in loader:
    critic.zero_grad()
    with torch.autocast("cuda"):
        real = F.softplus(-critic(x)).mean()
    scaler.scale(real).backward()
    with torch.autocast("cuda"):
        made = F.softplus(critic(model(y).detach())).mean()
    made.backward()  # expect: GL207
    scaler.step(critic_optimizer)
    scaler.update()
""",
    "a critic's loss is scaled, and one through it for another network is not, whose gradients are zeroed": """
critic, scaler = nn.Linear(4, 1), torch.amp.GradScaler("cuda")
critic_optimizer = torch.optim.Adam(critic.parameters())
for x, y in loader:
    optimizer.zero_grad()
    critic(model(x)).mean().backward()
    optimizer.step()
    critic.zero_grad()
    with torch.autocast("cuda"):
        real = F.softplus(-critic(y)).mean()
    scaler.scale(real).backward()
    scaler.step(critic_optimizer)
    scaler.update()
""",
    "the first of two scalers never lowers its scale": """
class Pair:
    def __init__(self, net, judge):
        self.net, self.judge = net, judge
        self.opt = torch.optim.Adam(net.parameters())
        self.judge_opt = torch.optim.Adam(judge.parameters())
        self.scaler, self.judge_scaler = torch.amp.GradScaler("cuda"), torch.amp.GradScaler("cuda")
    def of_net(self, x):
        self.opt.zero_grad()
        with torch.autocast("cuda"):
            loss = F.softplus(-self.judge(self.net(x))).mean()
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.opt)
        norm = torch.nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
        if not torch.isfinite(norm):
            return  # expect: GL206
        self.scaler.step(self.opt)
        self.scaler.update()
    def of_judge(self, x, y):
        self.judge_opt.zero_grad()
        with torch.autocast("cuda"):
            loss = F.softplus(self.judge(self.net(x).detach()) - self.judge(y)).mean()
        self.judge_scaler.scale(loss).backward()
        self.judge_scaler.step(self.judge_opt)
        self.judge_scaler.update()
    def fit(self):
        for x, y in loader:
            self.of_net(x)
            self.of_judge(x, y)
""",
    "the answer of a check has a name": """
def train():
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        bad = torch.isnan(norm) | torch.isinf(norm)
        if bad:
            optimizer.zero_grad()
            continue  # expect: GL206
        scaler.step(optimizer)
        scaler.update()
""",
    "the answer of a check of the loss has a name": """
def train():
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = F.cross_entropy(model(x), y)
        bad = torch.isnan(loss)
        if bad:
            continue
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
""",
    "five phases of an update in a list": """
def compute(state):
    with torch.autocast("cuda"):
        state["loss"] = F.cross_entropy(model(state["x"]), state["y"])
def scale(state):
    state["scaler"].scale(state["loss"]).backward()
def unscale(state):
    state["scaler"].unscale_(optimizer)
def clip(state):
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # expect: GL201
def step(state):
    state["scaler"].step(optimizer)
    state["scaler"].update()
def zero(state):
    optimizer.zero_grad()
RIGHT = [zero, compute, scale, unscale, clip, step]
WRONG = [zero, compute, scale, clip, step]
def train(phases):
    state = {"scaler": torch.amp.GradScaler("cuda")}
    for x, y in loader:
        state |= {"x": x, "y": y}
        for phase in phases:
            phase(state)
train(WRONG)
""",
    "six phases of an update in a list": """
def compute(state):
    with torch.autocast("cuda"):
        state["loss"] = F.cross_entropy(model(state["x"]), state["y"])
def scale(state):
    state["scaler"].scale(state["loss"]).backward()
def unscale(state):
    state["scaler"].unscale_(optimizer)
def clip(state):
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
def step(state):
    state["scaler"].step(optimizer)
    state["scaler"].update()
def zero(state):
    optimizer.zero_grad()
RIGHT = [zero, compute, scale, unscale, clip, step]
WRONG = [zero, compute, scale, clip, step]
def train(phases):
    state = {"scaler": torch.amp.GradScaler("cuda")}
    for x, y in loader:
        state |= {"x": x, "y": y}
        for phase in phases:
            phase(state)
train(RIGHT)
""",
    "clipped under a flag that has nothing to do with the scaler": """
class Amp:
    def __init__(self, precision, optimizer, params, bound):
        self.scaler = torch.amp.GradScaler("cuda") if precision == 1 else None
        self.optimizer, self.params, self.bound = optimizer, params, bound
        self.early = bound > 0 and not hasattr(optimizer, "global_norm")
    def update(self, loss, due):
        if self.scaler is not None:
            self.scaler.scale(loss).backward()
        else:
            loss.backward()
        if due:
            if self.early:
                torch.nn.utils.clip_grad_norm_(self.params, self.bound)  # expect: GL201
            if self.scaler is not None:
                self.scaler.step(self.optimizer)
                self.scaler.update()
            else:
                self.optimizer.step()
            self.optimizer.zero_grad()
""",
}


@pytest.mark.parametrize("name", CASES)
def test_marked_lines_are_found_and_no_other_fault(name, tmp_path):
    assert_faults(CASES[name], tmp_path)
