"""Loops written in less usual ways: the right one is silent, and the mistake in it is found at its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradlab.audit import rules
from gradlab.audit.audit import audit
from gradlab.audit.project import Project
from gradlab.audit.sources import read

HEAD = """\
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

model = nn.Linear(8, 4)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
CLIP, STEP = "clip_grad_norm_(model.parameters(), 1.0)", "optimizer.step()"
SHAPES: dict[str, tuple[str, str, str, str, str]] = {
    # name: text, what is replaced, by what, the rule, a part of its line
    "except_body": ("""
for x, y in loader:
    try:
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    except RuntimeError:
        optimizer.zero_grad()
        criterion(model(x[:1]), y[:1]).backward()
        clip_grad_norm_(model.parameters(), 1.0)  # small
        optimizer.step()  # small
""", "        clip_grad_norm_(model.parameters(), 1.0)  # small\n        optimizer.step()  # small\n",
     "        optimizer.step()  # small\n        clip_grad_norm_(model.parameters(), 1.0)  # small\n", "GL101", "1.0)  # small"),
    "except_continue": ("""
for x, y in loader:
    try:
        loss = criterion(model(x), y)
    except RuntimeError as error:
        print(error)
        optimizer.zero_grad()
        continue
    optimizer.zero_grad()
    loss.backward()
    clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
""", CLIP + "\n    " + STEP, STEP + "\n    " + CLIP, "GL101", CLIP),
    "exit_stack": ("""
import contextlib
scaler = torch.amp.GradScaler("cuda")
for x, y in loader:
    optimizer.zero_grad()
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.autocast("cuda", dtype=torch.float16))
        loss = criterion(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
""", "        stack.enter_context(torch.autocast(\"cuda\", dtype=torch.float16))\n", "", "GL208", "model(x)"),
    "exit_stack_no_sync": ("""
from contextlib import ExitStack
ddp = nn.parallel.DistributedDataParallel(model)
for i, (x, y) in enumerate(loader):
    last = (i + 1) % 4 == 0 or i + 1 == len(loader)
    with ExitStack() as stack:
        if not last:
            stack.enter_context(ddp.no_sync())
        (criterion(ddp(x), y) / 4).backward()
    if last:
        optimizer.step()
        optimizer.zero_grad()
""", "if not last:\n            stack", "if last:\n            stack", "GL502", "ddp"),
    "while_next": ("""
batches = iter(loader)
step = 0
while step < total_steps:
    try:
        x, y = next(batches)
    except StopIteration:
        batches = iter(loader)
        x, y = next(batches)
    optimizer.zero_grad()
    criterion(model(x), y).backward()
    clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    step += 1
""", CLIP + "\n    " + STEP, STEP + "\n    " + CLIP, "GL101", CLIP),
    "generator": ("""
class Runner:
    def __init__(self, loader):
        self.loader, self.model = loader, nn.Linear(8, 4)
        self.opt = torch.optim.SGD(self.model.parameters(), lr=0.1)
    def batches(self):
        for x, y in self.loader:
            yield x.cuda(), y.cuda()
    def fit(self):
        for x, y in self.batches():
            self.opt.zero_grad()
            nn.functional.cross_entropy(self.model(x), y).backward()
            clip_grad_norm_(self.model.parameters(), 1.0)
            self.opt.step()
""", "clip_grad_norm_(self.model.parameters(), 1.0)\n            self.opt.step()",
     "self.opt.step()\n            clip_grad_norm_(self.model.parameters(), 1.0)", "GL101", "clip_grad_norm_(self"),
    "losses_yielded": ("""
def losses():
    for x, y in loader:
        yield criterion(model(x), y)
def main():
    for loss in losses():
        optimizer.zero_grad()
        loss.backward()
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
main()
""", CLIP + "\n        " + STEP, STEP + "\n        " + CLIP, "GL101", CLIP),
    "match": ("""
for x, y in loader:
    optimizer.zero_grad()
    criterion(model(x), y).backward()
    match mode:
        case "norm":
            clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        case "value":
            nn.utils.clip_grad_value_(model.parameters(), 1.0)
            optimizer.step()
        case _:
            optimizer.step()
""", "clip_grad_norm_(model.parameters(), 1.0)\n            optimizer.step()",
     "optimizer.step()\n            clip_grad_norm_(model.parameters(), 1.0)", "GL101", "clip_grad_norm_"),
    "walrus": ("""
while (batch := next(stream, None)) is not None:
    x, y = batch
    optimizer.zero_grad()
    (loss := criterion(model(x), y)).backward()
    if (norm := clip_grad_norm_(model.parameters(), 1.0)) > 10:
        print(norm)
    optimizer.step()
""", "    if (norm := clip_grad_norm_(model.parameters(), 1.0)) > 10:\n        print(norm)\n    optimizer.step()\n",
     "    optimizer.step()\n    if (norm := clip_grad_norm_(model.parameters(), 1.0)) > 10:\n        print(norm)\n", "GL101", "norm := clip"),
    "async": ("""
async def train():
    async for x, y in loader:
        optimizer.zero_grad()
        loss = await forward(x, y)
        criterion(model(x), y).backward()
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
""", CLIP + "\n        " + STEP, STEP + "\n        " + CLIP, "GL101", CLIP),
    "decorated": ("""
@torch.compile
def train_step(x, y):
    optimizer.zero_grad()
    loss = criterion(model(x), y)
    loss.backward()
    clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss
total = 0.0
for x, y in loader:
    total += train_step(x, y).item()
""", CLIP + "\n    " + STEP, STEP + "\n    " + CLIP, "GL101", CLIP),
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
    "decorator_of_the_project": ("""
import functools
def timed(function):
    @functools.wraps(function)
    def inner(*args, **kwargs):
        start = time.time()
        result = function(*args, **kwargs)
        print(time.time() - start)
        return result
    return inner
@timed
def train_step(x, y):
    optimizer.zero_grad()
    criterion(model(x), y).backward()
    clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
for x, y in loader:
    train_step(x, y)
""", CLIP + "\n    " + STEP, STEP + "\n    " + CLIP, "GL101", CLIP),
    "partial": ("""
from functools import partial
clip = partial(clip_grad_norm_, max_norm=1.0)
make = partial(torch.optim.SGD, lr=0.1)
opt = make(model.parameters())
for x, y in loader:
    opt.zero_grad()
    criterion(model(x), y).backward()
    clip(model.parameters())
    opt.step()
""", "    clip(model.parameters())\n    opt.step()\n", "    opt.step()\n    clip(model.parameters())\n", "GL101", "clip(model"),
    "partial_of_a_function": ("""
from functools import partial
def train_step(model, opt, x, y):
    opt.zero_grad()
    criterion(model(x), y).backward()
    clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
step = partial(train_step, model, optimizer)
for x, y in loader:
    step(x, y)
""", CLIP + "\n    opt.step()", "opt.step()\n    " + CLIP, "GL101", CLIP),
    "dataclass_config": ("""
from dataclasses import dataclass
@dataclass
class Config:
    accumulation: int = 4
    clip: float = 1.0
def main(config: Config):
    for i, (x, y) in enumerate(loader):
        loss = criterion(model(x), y) / config.accumulation
        loss.backward()
        if (i + 1) % config.accumulation == 0 or i + 1 == len(loader):
            clip_grad_norm_(model.parameters(), config.clip)
            optimizer.step()
            optimizer.zero_grad()
main(Config())
""", " / config.accumulation", "", "GL301", "loss.backward"),
    "dict_of_optimizers": ("""
class GAN:
    def __init__(self):
        self.nets = {"g": nn.Linear(8, 8), "d": nn.Linear(8, 1)}
        self.optims = {"g": torch.optim.Adam(self.nets["g"].parameters()), "d": torch.optim.Adam(self.nets["d"].parameters())}
    def train_step(self, x):
        self.optims["d"].zero_grad()
        d_loss = self.nets["d"](x).mean() - self.nets["d"](self.nets["g"](x).detach()).mean()
        d_loss.backward()
        clip_grad_norm_(self.nets["d"].parameters(), 1.0)
        self.optims["d"].step()
        self.optims["g"].zero_grad()
        g_loss = -self.nets["d"](self.nets["g"](x)).mean()
        g_loss.backward()
        self.optims["g"].step()
    def fit(self, loader):
        for x in loader:
            self.train_step(x)
""", """clip_grad_norm_(self.nets["d"].parameters(), 1.0)
        self.optims["d"].step()""", """self.optims["d"].step()
        clip_grad_norm_(self.nets["d"].parameters(), 1.0)""", "GL101", "clip_grad_norm_("),
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
    "closure_in_the_loop": ("""
for x, y in loader:
    def update():
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    update()
""", CLIP + "\n        " + STEP, STEP + "\n        " + CLIP, "GL101", CLIP),
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
    "star_arguments": ("""
def inner(net, opt, x, y, clip=None):
    opt.zero_grad()
    criterion(net(x), y).backward()
    if clip is not None:
        clip_grad_norm_(net.parameters(), clip)
    opt.step()
def outer(*args, **kwargs):
    return inner(*args, **kwargs)
for x, y in loader:
    outer(model, optimizer, x, y, clip=1.0)
""", "    if clip is not None:\n        clip_grad_norm_(net.parameters(), clip)\n    opt.step()\n",
     "    opt.step()\n    if clip is not None:\n        clip_grad_norm_(net.parameters(), clip)\n", "GL101", "clip_grad_norm_(net"),
    "star_star_dictionary": ("""
def inner(net, opt, x, y):
    opt.zero_grad()
    criterion(net(x), y).backward()
    clip_grad_norm_(net.parameters(), 1.0)
    opt.step()
parts = dict(net=model, opt=optimizer)
for x, y in loader:
    inner(x=x, y=y, **parts)
""", "    opt.zero_grad()\n", "", "GL305", "opt.step()"),
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
    "main_with_flags": ("""
import argparse
def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--amp", action="store_true")
    parser.add_argument("--clip", type=float, default=0.0)
    args = parser.parse_args()
    scaler = torch.amp.GradScaler("cuda", enabled=args.amp)
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.float16, enabled=args.amp):
            loss = criterion(model(x), y)
        scaler.scale(loss).backward()
        if args.clip > 0:
            scaler.unscale_(optimizer)
            clip_grad_norm_(model.parameters(), args.clip)
        scaler.step(optimizer)
        scaler.update()
if __name__ == "__main__":
    main()
""", "            scaler.unscale_(optimizer)\n", "", "GL201", "args.clip)"),
    "hydra_main": ("""
import hydra
@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(cfg):
    net = hydra.utils.instantiate(cfg.model)
    opt = hydra.utils.instantiate(cfg.optimizer, net.parameters())
    for epoch in range(cfg.epochs):
        for x, y in loader:
            opt.zero_grad()
            criterion(net(x), y).backward()
            clip_grad_norm_(net.parameters(), cfg.clip)
            opt.step()
main()
""", "clip_grad_norm_(net.parameters(), cfg.clip)\n            opt.step()",
     "opt.step()\n            clip_grad_norm_(net.parameters(), cfg.clip)", "GL101", "clip_grad_norm_("),
    "click": ("""
import click
@click.command()
@click.option("--clip", default=1.0)
def train(clip):
    for x, y in loader:
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        if clip:
            clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
if __name__ == "__main__":
    train()
""", "        if clip:\n            clip_grad_norm_(model.parameters(), clip)\n        optimizer.step()\n",
     "        optimizer.step()\n        if clip:\n            clip_grad_norm_(model.parameters(), clip)\n", "GL101", "clip_grad_norm_("),
    "absl": ("""
from absl import app, flags
FLAGS = flags.FLAGS
flags.DEFINE_integer("accumulate", 4, "")
def main(_):
    for i, (x, y) in enumerate(loader):
        (criterion(model(x), y) / FLAGS.accumulate).backward()
        if (i + 1) % FLAGS.accumulate == 0 or i + 1 == len(loader):
            optimizer.step()
            optimizer.zero_grad()
app.run(main)
""", "(criterion(model(x), y) / FLAGS.accumulate)", "criterion(model(x), y)", "GL301", "backward()"),
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
    "deepspeed": ("""
import deepspeed
engine, _, _, schedule = deepspeed.initialize(model=model, optimizer=optimizer, config="ds.json")
total = 0.0
for x, y in loader:
    loss = engine(x, y)
    engine.backward(loss)
    engine.step()
    total += loss.item()
""", "loss.item()", "loss", "GL605", "total +="),
    "fastai": ("""
from fastai.vision.all import Learner
learn = Learner(dls, model, loss_func=criterion)
learn.fit_one_cycle(3)
for x, y in loader:
    optimizer.zero_grad()
    loss = criterion(learn.model(x), y)
    loss.backward()
    clip_grad_norm_(learn.model.parameters(), 1.0)
    optimizer.step()
""", "clip_grad_norm_(learn.model.parameters(), 1.0)\n    optimizer.step()",
     "optimizer.step()\n    clip_grad_norm_(learn.model.parameters(), 1.0)", "GL101", "clip_grad_norm_(learn"),
    "apex": ("""
from apex import amp
model, optimizer = amp.initialize(model, optimizer, opt_level="O1")
for x, y in loader:
    optimizer.zero_grad()
    loss = criterion(model(x), y)
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        scaled_loss.backward()
    clip_grad_norm_(amp.master_params(optimizer), 1.0)
    optimizer.step()
""", "clip_grad_norm_(amp.master_params(optimizer), 1.0)\n    optimizer.step()",
     "optimizer.step()\n    clip_grad_norm_(amp.master_params(optimizer), 1.0)", "GL101", "clip_grad_norm_(amp"),
    "fabric_loop": ("""
from lightning.fabric import Fabric
fabric = Fabric(precision="16-mixed")
net, opt = fabric.setup(model, optimizer)
total = 0.0
for x, y in fabric.setup_dataloaders(loader):
    opt.zero_grad()
    loss = criterion(net(x), y)
    fabric.backward(loss)
    fabric.clip_gradients(net, opt, max_norm=1.0)
    opt.step()
""", "fabric.clip_gradients(net, opt, max_norm=1.0)\n    opt.step()",
     "opt.step()\n    fabric.clip_gradients(net, opt, max_norm=1.0)", "GL101", "fabric.clip_gradients"),
    "context_of_the_project": ("""
from contextlib import contextmanager
@contextmanager
def update(opt, net):
    opt.zero_grad()
    yield
    clip_grad_norm_(net.parameters(), 1.0)
    opt.step()
for x, y in loader:
    with update(optimizer, model):
        criterion(model(x), y).backward()
""", "clip_grad_norm_(net.parameters(), 1.0)\n    opt.step()",
     "opt.step()\n    clip_grad_norm_(net.parameters(), 1.0)", "GL101", "clip_grad_norm_(net"),
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
    "autocast_in_a_context_of_the_project": ("""
import contextlib
scaler = torch.amp.GradScaler("cuda")
@contextlib.contextmanager
def cast(flag):
    if flag:
        with torch.autocast("cuda", dtype=torch.float16):
            yield
    else:
        with torch.autocast("cuda", dtype=torch.float16, enabled=True):
            yield
for x, y in loader:
    optimizer.zero_grad()
    with cast(args.amp):
        loss = criterion(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
""", "    with cast(args.amp):\n        loss = criterion(model(x), y)\n",
     "    with cast(args.amp):\n        pass\n    loss = criterion(model(x), y)\n", "GL208", "model(x)"),
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
    "hooks_of_the_optimizer": ("""
def after(opt, args, kwargs):
    opt.zero_grad()
optimizer.register_step_pre_hook(lambda opt, args, kwargs: clip_grad_norm_(model.parameters(), 1.0))
optimizer.register_step_post_hook(after)
for x, y in loader:
    criterion(model(x), y).backward()
    optimizer.step()
""", "step_pre_hook(lambda", "step_post_hook(lambda", "GL101", "lambda opt"),
    "map_over_optimizers": ("""
opts = [torch.optim.Adam(model.parameters()), torch.optim.Adam(criterion.parameters())]
for x, y in loader:
    list(map(lambda o: o.zero_grad(), opts))
    criterion(model(x), y).backward()
    for o in opts:
        o.step()
""", "    list(map(lambda o: o.zero_grad(), opts))\n", "", "GL305", "o.step()"),
}  # fmt: skip


def found(text: str, folder: Path) -> list[tuple[str, str]]:
    (folder / "a.py").write_text(text)
    selected = {c: r for c, r in rules.load().items() if r.severity != "advice"}
    findings = audit(read(folder / "a.py"), Project(), selected).findings
    return [(f.code, text.split("\n")[f.line - 1]) for f in findings]


@pytest.mark.parametrize("name", SHAPES)
def test_the_right_loop_is_silent(name, tmp_path):
    assert found(HEAD + SHAPES[name][0], tmp_path) == []


@pytest.mark.parametrize("name", SHAPES)
def test_the_mistake_is_found_at_its_line(name, tmp_path):
    text, old, new, code, at = SHAPES[name]
    assert old in text
    result = found(HEAD + text.replace(old, new), tmp_path)
    assert {c for c, _ in result} == {code}
    assert any(at in line for _, line in result), result


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
    selected = {c: r for c, r in rules.load().items() if r.severity != "advice"}
    assert audit(read(tmp_path / "base.py"), Project(), selected).findings == []


SILENT = {
    "zero_of_something_unknown": """
for x, y in loader:
    getattr(holder, f"{name}_opt").zero_grad()
    criterion(model(x), y).backward()
    getattr(holder, f"{name}_opt").zero_grad()
    optimizer.step()
""",
    "handler_that_zeroes": """
for i, (x, y) in enumerate(loader):
    try:
        (criterion(model(x), y) / 4).backward()
    except RuntimeError:
        optimizer.zero_grad()
        torch.cuda.empty_cache()
    if (i + 1) % 4 == 0:
        optimizer.step()
        optimizer.zero_grad()
""",
    "stack_filled_by_a_helper": """
from contextlib import ExitStack
scaler = torch.amp.GradScaler("cuda")
for x, y in loader:
    optimizer.zero_grad()
    with ExitStack() as stack:
        enter_all(stack)
        loss = criterion(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
""",
    "partial_with_its_own_type": """
from functools import partial
cast = partial(torch.autocast, "cuda", dtype=torch.bfloat16)
for x, y in loader:
    optimizer.zero_grad()
    with cast():
        loss = criterion(model(x), y)
    loss.backward()
    optimizer.step()
""",
    "engine_counts_windows": """
model_engine, opt, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters())
for i, (x, y) in enumerate(loader):
    loss = criterion(model_engine(x), y)
    model_engine.backward(loss)
    model_engine.step()
    if (i + 1) % 4 == 0:
        print(loss.item())
""",
    "engine_by_its_use": """
def train(engine, loader):
    for x, y in loader:
        loss = engine(x, y)
        engine.backward(loss)
        engine.step()
""",
    "arguments": """
from transformers import Trainer, TrainingArguments
args = TrainingArguments("out", fp16=True, bf16=False, max_grad_norm=1.0, gradient_accumulation_steps=4)
args = TrainingArguments("out", fp16=flag, bf16=not flag)
Trainer(model, args).train()
""",
    "manual_and_automatic": """
import lightning as L
class One(L.LightningModule):
    def training_step(self, batch, i):
        return criterion(model(batch), batch)
L.Trainer(gradient_clip_val=1.0, accumulate_grad_batches=4).fit(One())
""",
    "keywords_of_keywords": """
def step(**kwargs):
    kwargs["optimizer"].zero_grad()
    criterion(kwargs.get("model")(x), y).backward()
    kwargs["optimizer"].step()
for x, y in loader:
    step(model=model, optimizer=optimizer)
""",
    "globals": """
for x, y in loader:
    globals()["optimizer"].zero_grad()
    criterion(model(x), y).backward()
    optimizer.step()
""",
    "hooks": """
class A:
    def __init__(self, hooks): self.opt, self.hooks = torch.optim.SGD(model.parameters(), 0.1), hooks
    def call(self, name):
        for h in self.hooks: getattr(h, name)(self)
    def fit(self):
        for x, y in loader:
            self.call("before")
            criterion(model(x), y).backward()
            self.call("after")
            self.opt.step()
""",
    "callback_list": """
def fit(model, optimizer, callbacks):
    for x, y in loader:
        criterion(model(x), y).backward()
        optimizer.step()
        for c in callbacks: c(model, optimizer)
""",
    "finally_step": """
for x, y in loader:
    optimizer.zero_grad()
    try:
        criterion(model(x), y).backward()
        clip_grad_norm_(model.parameters(), 1.0)
    finally:
        optimizer.step()
""",
    "own_optimizer": """
class Opt:
    def __init__(self, inner): self.inner = inner
    def step(self):
        self.inner.step()
        self.inner.zero_grad()
opt = Opt(optimizer)
for x, y in loader:
    criterion(model(x), y).backward()
    opt.step()
""",
    "own_optimizer_getattr": """
class Opt:
    def __init__(self, inner): self.inner = inner
    def __getattr__(self, name): return getattr(self.inner, name)
    def step(self):
        self.inner.step()
opt = Opt(optimizer)
for x, y in loader:
    opt.zero_grad()
    criterion(model(x), y).backward()
    opt.step()
""",
    "noam": """
class Noam:
    def __init__(self, opt): self.optimizer = opt; self._step = 0
    def step(self):
        self._step += 1
        for p in self.optimizer.param_groups: p["lr"] = self._step
        self.optimizer.step()
for epoch in range(3):
    opt = Noam(optimizer)
    for x, y in loader:
        criterion(model(x), y).backward()
        opt.step()
        opt.optimizer.zero_grad()
""",
    "head_zero": """
for i, (x, y) in enumerate(loader):
    if i % 4 == 0: optimizer.zero_grad()
    (criterion(model(x), y) / 4).backward()
    if i % 4 == 3 or i == len(loader) - 1: optimizer.step()
""",
    "nonlocal": """
def main():
    opt, total = None, 0.0
    def setup():
        nonlocal opt
        opt = torch.optim.SGD(model.parameters(), 0.1)
    def train(x, y):
        nonlocal total
        opt.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        opt.step()
        total += loss.item()
    setup()
    for x, y in loader: train(x, y)
""",
    "inner_opts": """
import higher
with higher.innerloop_ctx(model, optimizer) as (fnet, diffopt):
    for x, y in loader:
        diffopt.step(criterion(fnet(x), y))
outer = criterion(fnet(x), y)
outer.backward()
optimizer.step()
""",
    "accumulate_flag_arg": """
def step(x, y, update=True):
    (criterion(model(x), y) / n).backward()
    if update:
        optimizer.step()
        optimizer.zero_grad()
for i, (x, y) in enumerate(loader):
    step(x, y, update=(i + 1) % n == 0 or i + 1 == len(loader))
""",
    "dunder_dict": """
class A:
    def __init__(self): self.opt = torch.optim.SGD(model.parameters(), 0.1)
    def fit(self):
        for x, y in loader:
            self.__dict__["opt"].zero_grad()
            criterion(model(x), y).backward()
            self.opt.step()
""",
    "sam": """
class SAM(torch.optim.Optimizer):
    def first_step(self, zero_grad=False): ...
opt = SAM(model.parameters(), torch.optim.SGD)
for x, y in loader:
    criterion(model(x), y).backward()
    opt.first_step(zero_grad=True)
    criterion(model(x), y).backward()
    opt.second_step(zero_grad=True)
""",
    "trainer_opt_step": """
class T:
    def optimizer_step(self): self.opt.step(); self.opt.zero_grad()
    def fit(self):
        for self.i, (x, y) in enumerate(loader):
            (criterion(model(x), y) / self.accum).backward()
            if self.should_step: self.optimizer_step()
    @property
    def should_step(self): return (self.i + 1) % self.accum == 0 or self.i + 1 == len(loader)
""",
    "map_method": """
for x, y in loader:
    for f in (optimizer.zero_grad,): f()
    criterion(model(x), y).backward()
    optimizer.step()
""",
}


@pytest.mark.parametrize("name", SILENT)
def test_right_code_that_looks_unusual_is_silent(name, tmp_path):
    assert found(HEAD + SILENT[name], tmp_path) == []


def test_arguments_that_contradict_each_other(tmp_path):
    both = "from transformers import TrainingArguments\na = TrainingArguments('o', fp16=True,\n    bf16=True)\n"
    assert found(both, tmp_path) == [("GL812", "    bf16=True)")]
    text = (Path(__file__).parent / "right" / "lightning_manual.py").read_text()
    for line, code in (("gradient_clip_val=1.0", "GL813"), ("accumulate_grad_batches=4", "GL813"),
                       ("accumulate_grad_batches=1", ""), ("gradient_clip_val=None", "")):  # fmt: skip
        last = f"lightning.Trainer({line})"
        assert found(f"{text}\nimport lightning\n{last}\n", tmp_path) == ([(code, last)] if code else [])
