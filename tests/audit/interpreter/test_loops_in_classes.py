"""Loops spread over classes, properties and their bases."""

from __future__ import annotations

import pytest
from loop_shapes import CLIP, STEP, Shapes, assert_broken, assert_silent, found

from gradlab.audit.file_audit import audit
from gradlab.audit.rules.registry import load_rules
from gradlab.audit.source.files import read
from gradlab.audit.source.project import Project

SHAPES: Shapes = {
    # name: text, what is replaced, by what, the rule, a part of its line
    "getattr": ("""
class Runner:
    def train_epoch(self):
        for x, y in loader:
            optimizer.zero_grad()
            criterion(model(x), y).backward()
            clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    def run(self, name):
        getattr(self, "train_" + name)()
        getattr(self, "train_epoch")()
Runner().run("epoch")
""", CLIP + "\n            " + STEP, STEP + "\n            " + CLIP, "GL101", CLIP),
    "setattr": ("""
class Runner:
    def __init__(self, **kwargs):
        setattr(self, "opt", torch.optim.SGD(model.parameters(), 0.1))
        for name, value in kwargs.items():
            setattr(self, name, value)
    def fit(self):
        for x, y in loader:
            getattr(self, "opt").zero_grad()
            criterion(model(x), y).backward()
            clip_grad_norm_(model.parameters(), 1.0)
            self.opt.step()
""", '            getattr(self, "opt").zero_grad()\n', "", "GL305", "self.opt.step()"),
    "properties": ("""
class Runner:
    def __init__(self):
        self._opt = torch.optim.SGD(model.parameters(), 0.1)
        self._net = model
    @property
    def opt(self):
        return self._opt
    @property
    def loss(self):
        return criterion(self._net(self.x), self.y)
    def fit(self):
        for self.x, self.y in loader:
            self.opt.zero_grad()
            self.loss.backward()
            clip_grad_norm_(self._net.parameters(), 1.0)
            self.opt.step()
""", "            self.opt.zero_grad()\n", "", "GL305", "self.opt.step()"),
    "optimize_parameters": ("""
class Cycle:
    def __init__(self, opt):
        self.netG, self.netD = define_G(opt), define_D(opt)
        self.optimizer_G = torch.optim.Adam(self.netG.parameters(), lr=opt.lr)
        self.optimizer_D = torch.optim.Adam(self.netD.parameters(), lr=opt.lr)
        self.optimizers = [self.optimizer_G, self.optimizer_D]
    def forward(self):
        self.fake = self.netG(self.real)
    def backward_D(self):
        self.loss_D = self.netD(self.fake.detach()).mean() - self.netD(self.real).mean()
        self.loss_D.backward()
    def backward_G(self):
        self.loss_G = -self.netD(self.fake).mean()
        self.loss_G.backward()
    def optimize_parameters(self):
        self.forward()
        self.set_requires_grad(self.netD, True)
        self.optimizer_D.zero_grad()
        self.backward_D()
        self.optimizer_D.step()
        self.set_requires_grad(self.netD, False)
        self.optimizer_G.zero_grad()
        self.backward_G()
        self.optimizer_G.step()
    def set_requires_grad(self, net, flag):
        for p in net.parameters():
            p.requires_grad = flag
def main(opt):
    made = Cycle(opt)
    for data in dataset:
        made.real = data
        made.optimize_parameters()
main(parse())
""", "        self.backward_G()\n        self.optimizer_G.step()\n",
     "        self.backward_G()\n        self.optimizer_G.zero_grad()  #\n        self.optimizer_G.step()\n", "GL103", "zero_grad()  #"),
    "trainer_subclass": ("""
from transformers import Trainer
class Mine(Trainer):
    def training_step(self, model, inputs, num_items_in_batch=None):
        model.train()
        loss = self.compute_loss(model, inputs)
        self.accelerator.backward(loss)
        return loss.detach() / self.args.gradient_accumulation_steps
    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        labels = inputs.pop("labels")
        logits = model(**inputs).logits
        return nn.functional.cross_entropy(logits, labels)
total = 0.0
for x, y in loader:
    optimizer.zero_grad()
    loss = criterion(model(x), y)
    loss.backward()
    optimizer.step()
    total += loss.item()
""", "loss.item()", "loss", "GL605", "total +="),
    "object_with_enter_and_exit": ("""
class Update:
    def __init__(self, opt):
        self.opt = opt
    def __enter__(self):
        self.opt.zero_grad()
        return self
    def __exit__(self, *error):
        clip_grad_norm_(model.parameters(), 1.0)
        self.opt.step()
for x, y in loader:
    with Update(optimizer):
        criterion(model(x), y).backward()
""", "        self.opt.zero_grad()\n", "", "GL305", "self.opt.step()"),
    "methods_under_other_names": ("""
zero, step, back = optimizer.zero_grad, optimizer.step, lambda loss: loss.backward()
for x, y in loader:
    zero()
    back(criterion(model(x), y))
    step()
""", "    zero()\n", "", "GL305", "step()"),
    "parts_handed_to_a_loop": ("""
def run(zero, back, step):
    for x, y in loader:
        zero()
        back(criterion(model(x), y))
        step()
run(optimizer.zero_grad, lambda loss: loss.backward(), optimizer.step)
""", "        zero()\n", "", "GL305", "step()"),
    "dict_of_optimizers_zero": ("""
optims = {"a": torch.optim.Adam(model.parameters()), "b": torch.optim.Adam(criterion.parameters())}
for x, y in loader:
    for opt in optims.values():
        opt.zero_grad()
    criterion(model(x), y).backward()
    for opt in optims.values():
        opt.step()
""", "    for opt in optims.values():\n        opt.zero_grad()\n", "", "GL305", "opt.step()"),
    "schedulers_in_a_loop": ("""
optims = [torch.optim.Adam(model.parameters()), torch.optim.Adam(criterion.parameters())]
schedules = [torch.optim.lr_scheduler.StepLR(o, 10) for o in optims]
for x, y in loader:
    for o in optims:
        o.zero_grad()
    criterion(model(x), y).backward()
    for o in optims:
        o.step()
    for s in schedules:
        s.step()
""", "    for o in optims:\n        o.step()\n    for s in schedules:\n        s.step()\n",
     "    for s in schedules:\n        s.step()\n    for o in optims:\n        o.step()\n", "GL402", "s.step()"),
    "optimizers_in_a_tuple": ("""
enc, dec = nn.Linear(8, 8), nn.Linear(8, 4)
opts = (torch.optim.SGD(enc.parameters(), 0.1), torch.optim.SGD(dec.parameters(), 0.1))
def train(opts):
    for x, y in loader:
        opts[0].zero_grad(), opts[1].zero_grad()
        criterion(dec(enc(x)), y).backward()
        clip_grad_norm_([*enc.parameters(), *dec.parameters()], 1.0)
        opts[0].step()
        opts[1].step()
train(opts)
""", "opts[0].zero_grad(), opts[1].zero_grad()", "opts[0].zero_grad()", "GL305", "opts[1].step()"),
    "map_over_optimizers": ("""
opts = [torch.optim.Adam(model.parameters()), torch.optim.Adam(criterion.parameters())]
for x, y in loader:
    list(map(lambda o: o.zero_grad(), opts))
    criterion(model(x), y).backward()
    for o in opts:
        o.step()
""", "    list(map(lambda o: o.zero_grad(), opts))\n", "", "GL305", "o.step()"),
    "decorated_enable_grad": ("""
class Runner:
    @torch.enable_grad()
    def train_step(self, x, y):
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss
    def fit(self, loader):
        total = 0.0
        for x, y in loader:
            total += self.train_step(x, y).detach()
""", "self.train_step(x, y).detach()", "self.train_step(x, y)", "GL605", "total +="),
}  # fmt: skip


@pytest.mark.parametrize("name", SHAPES)
def test_nothing_is_found_in_the_correct_loop(name, tmp_path):
    assert_silent(SHAPES[name], tmp_path)


@pytest.mark.parametrize("name", SHAPES)
def test_the_mistake_is_found_at_its_line(name, tmp_path):
    assert_broken(SHAPES[name], tmp_path)


BASE = """\
from abc import ABC, abstractmethod

class Base(ABC):
    def __init__(self, model, optimizer, loader):
        self.model, self.optimizer, self.loader = model, optimizer, loader
    @abstractmethod
    def compute_loss(self, batch): ...
    def update(self):
        raise NotImplementedError
    def on_batch_end(self, loss):
        pass
    def fit(self):
        for batch in self.loader:
            self.optimizer.zero_grad()
            loss = self.compute_loss(batch)
            loss.backward()
            self.update()
            self.on_batch_end(loss)
"""
MINE = """\
from torch import nn
from base import Base

class Mine(Base):
    def compute_loss(self, batch):
        return nn.functional.cross_entropy(self.model(batch[0]), batch[1])
    def update(self):
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
"""


def test_a_loop_in_a_base_class_of_another_file_calls_what_the_subclass_defines(tmp_path):
    (tmp_path / "base.py").write_text(BASE)
    assert found(MINE, tmp_path) == []
    clip, step = MINE.split("\n")[7:9]
    assert found(MINE.replace(f"{clip}\n{step}", f"{step}\n{clip}"), tmp_path) == [("GL101", clip)]
    selected = {c: r for c, r in load_rules().items() if r.severity != "advice"}
    assert audit(read(tmp_path / "base.py"), Project(), selected).findings == []


DUMMY = """\
class GradScaler:
    def scale(self, loss):
        return loss
    def step(self, optimizer):
        optimizer.step()
    def update(self):
        pass
"""
NEWER = """\
import torch
if torch.__version__ >= "1.6.0":
    from torch.cuda.amp import GradScaler
else:
    from dummy import GradScaler

def fit(model, criterion, optimizer: torch.optim.Optimizer, loader):
    scaler = GradScaler()
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = criterion(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""


def test_a_name_that_is_imported_from_pytorch_or_elsewhere_is_pytorchs(tmp_path):
    (tmp_path / "dummy.py").write_text(DUMMY)
    assert found(NEWER, tmp_path) == []
    update = "        scaler.update()\n"
    assert found(NEWER.replace(update, ""), tmp_path) == [("GL205", "        scaler.step(optimizer)")]
