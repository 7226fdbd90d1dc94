"""Networks, records and phases that functions are given: a mistake with them is found as with what is made there."""

from __future__ import annotations

import pytest
from audited_snippets import assert_faults

GAN = """
class Trainer:
    def __init__(self, first, second, settings):
        self.first, self.second, self.settings = first, second, settings
        self.one = torch.optim.Adam(self.first.parameters())
        self.two = torch.optim.Adam(self.second.parameters())
        self.criterion = nn.BCEWithLogitsLoss()
    def judge(self, x):
        self.two.zero_grad()
        made = self.first(torch.randn(4, 8)).detach()
        loss = self.criterion(self.second(made), torch.zeros(4, 1)) + self.criterion(self.second(x), torch.ones(4, 1))
        loss.backward()
        nn.utils.clip_grad_norm_(self.second.parameters(), 1.0)
        self.two.step()
    def make(self):
        made = self.first(torch.randn(4, 8))
        self.one.zero_grad()
        self.criterion(self.second(made), torch.ones(4, 1)).backward()
        self.one.step()
    def fit(self, batches):
        for i, (x, _) in enumerate(batches):
            self.judge(x)
            if i % self.settings.every == 0:
                self.make()
"""
AGENT = """
def learn(actor, critic, memory, gamma):
    optimizer = torch.optim.Adam([*actor.parameters(), *critic.parameters()])
    for _ in range(9):
        x, action, reward, after, done = memory.sample(64)
        value = critic(x).squeeze(-1)
        with torch.no_grad():
            target = reward + gamma * critic(after).squeeze(-1) * (1 - done)
        gain = (target - value).detach()
        chosen = F.log_softmax(actor(x), -1).gather(1, action)
        loss = -(chosen * gain).mean() + F.mse_loss(value, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
PHASES = """
def train(net, opt, schedule, batches):
    criterion = nn.CrossEntropyLoss() if net.several else nn.BCEWithLogitsLoss()
    for epoch in range(9):
        for phase in ["train", "val"]:
            net.train(phase == "train")
            for x, y in batches[phase]:
                opt.zero_grad()
                with torch.set_grad_enabled(phase == "train"):
                    out = net(x)
                    loss = criterion(out, y)
                    if phase == "train":
                        loss.backward()
                        opt.step()
"""
RECORD = """
from dataclasses import dataclass
from types import SimpleNamespace
@dataclass
class State:
    net: nn.Module
    opt: torch.optim.Optimizer
    schedule: object
    length: int = 4
def update(state, settings):
    state.opt.step()
    state.opt.zero_grad()
    state.schedule.step()
def fit(net, batches, settings):
    opt = torch.optim.AdamW(net.parameters())
    total = len(loader) // 4 * settings.epochs
    schedule = torch.optim.lr_scheduler.OneCycleLR(opt, 0.1, total_steps=total)
    state = State(net, opt, schedule=schedule)
    for epoch in range(settings.epochs):
        for i, (x, y) in enumerate(loader):
            (F.cross_entropy(state.net(x), y) / state.length).backward()
            if (i + 1) % state.length == 0:
                update(state, settings)
"""
WRONG = RECORD.replace(" // 4 *", " *").replace("schedule=schedule", "schedule")
RECORDED = "@dataclass\nclass State:\n"
FROZEN = """
def tune(net, words, batches):
    words.requires_grad_(False)
    opt = torch.optim.AdamW(net.parameters())
    for x, y in batches:
        opt.zero_grad()
        F.cross_entropy(net(words(x)), y).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
"""
EPOCHS = """
class Runner:
    def __init__(self, cfg):
        self.cfg = cfg
        self.opt = torch.optim.SGD(model.parameters(), lr=0.1)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.opt, T_max=cfg["epochs"])
    def fit(self):
        for epoch in range(self.cfg["epochs"]):
            for x, y in loader:
                self.opt.zero_grad()
                F.cross_entropy(model(x), y).backward()
                self.opt.step()
            self.schedule.step()
"""
SCALED = """
def fit(net, batches):
    opt, scaler = torch.optim.SGD(net.parameters(), lr=0.1), torch.amp.GradScaler("cuda")
    for x, y in batches:
        opt.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.kl_div(F.log_softmax(net(x), -1), y)
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()
"""
DRAWN = """
def fit(transform, drawn):
    opt = torch.optim.Adam(transform.parameters())
    for x, y in loader:
        opt.zero_grad()
        loss = -model(drawn.sample(64)).mean()
        loss.backward()
        opt.step()
"""
PASSED = "for x, y in loader:\n"
ZERO = "        self.one.zero_grad()\n"
MADE = "self.criterion(self.second(made), torch.ones(4, 1)).backward()\n"
CASES = {
    "right": (GAN + AGENT + PHASES + RECORD + FROZEN + EPOCHS + SCALED, "", "", {}),
    "one is not moved": (GAN, "        made = self.first(torch.randn(4, 8))\n", "        with torch.no_grad():\n            made = self.first(torch.randn(4, 8))\n", {"self.one.step()": "GL701"}),
    "an optimizer of the other": (GAN, "self.two = torch.optim.Adam(self.second", "self.two = torch.optim.Adam(self.first", {"self.two = ": "GL702"}),
    "zeroed before the step, now and then": (GAN, f"{ZERO}        {MADE}", f"        {MADE}{ZERO}", {"self.one.zero_grad()": "GL103"}),
    "the other is clipped": (GAN, "clip_grad_norm_(self.second", "clip_grad_norm_(self.first", {"clip_grad_norm_": "GL705"}),
    "a target": (AGENT, "with torch.no_grad():", "if True:", {"loss = -(": "GL718"}),
    "detached in a phase": (PHASES, "out = net(x)", "out = net(x).detach()", {"out = ": "GL712"}),
    "a softmax for one of two losses": (PHASES, "criterion(out, y)", "criterion(F.softmax(out, -1), y)", {"criterion(F": "GL609"}),
    "a record's schedule in micro-batches": (RECORD, " // 4 *", " *", {"OneCycleLR": "GL403"}),
    "a record of another package": (WRONG, RECORDED, "@attrs.define(slots=True)\nclass State:\n", {"OneCycleLR": "GL403"}),
    "a record with what it is not made with": (WRONG, RECORDED, f"{RECORDED}    kind: ClassVar[str] = 'x'\n    at: int = field(init=False)\n", {"OneCycleLR": "GL403"}),
    "a named tuple": (WRONG, RECORDED, "class State(NamedTuple):\n", {"OneCycleLR": "GL403"}),
    "annotations of a class that is made elsewhere": (WRONG, RECORDED, "class State(elsewhere.Base):\n", {}),
    "a record after fields of a class that is not seen": (WRONG.replace("    net: nn.Module\n", ""), RECORDED, "@dataclass\nclass State(elsewhere.Base):\n", {}),
    "what may be drawn with its graph": (DRAWN, "", "", {}),
    "what is drawn from a network whose part is trained": (DRAWN.replace("drawn", "flow_memory"), "transform.p", "flow_memory.net.p", {}),
    "what is drawn from what is stored": (DRAWN, PASSED, f"{PASSED}        drawn.push(x, y)\n", {"opt.step()": "GL701"}),
    "what is drawn from a memory": (DRAWN.replace("drawn", "memory"), "", "", {"opt.step()": "GL701"}),
    "frozen weights are clipped": (FROZEN, "norm_(net", "norm_(words", {"clip_grad": "GL705"}),
    "as long as the epochs, by another name": (EPOCHS, "    self.schedule.step()", "        self.schedule.step()", {"CosineAnnealingLR(self.opt": "GL405"}),
    "unscaled before there is a gradient": (SCALED, "        scaler.scale(loss).backward()\n        scaler.unscale_(opt)\n", "        scaler.unscale_(opt)\n        scaler.scale(loss).backward()\n", {"clip_grad": "GL201"}),
    "no logarithm": (SCALED, "F.log_softmax(", "F.softmax(", {"kl_div": "GL609"}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_mistake_with_what_is_given_is_found(name, tmp_path):
    text, old, new, marks = CASES[name]
    assert old in text
    changed = text.replace(old, new, 1) if old else text
    for part, code in marks.items():
        changed = "\n".join(f"{one}  # expect: {code}" if part in one else one for one in changed.split("\n"))
    assert_faults(changed, tmp_path)
