"""Correct code that looks unusual: nothing is found in it."""

from __future__ import annotations

import pytest
from loop_shapes import HEAD, found

SILENT = {
    "a mode that a context on a stack restores": """
from contextlib import ExitStack, contextmanager
@contextmanager
def evaluating(net):
    before = net.training
    net.eval()
    yield
    net.train(before)
def test(net):
    with ExitStack() as stack:
        stack.enter_context(evaluating(net))
        stack.enter_context(torch.no_grad())
        return [net(x) for x, y in loader]
model.train()
for i, (x, y) in enumerate(loader):
    optimizer.zero_grad()
    criterion(model(x), y).backward()
    optimizer.step()
    if i % 100 == 0:
        test(model)
""",
    "an optimizer that steps its schedules": """
for x, y in loader:
    criterion(model(x), y).backward()
    optimizer.optimize()
    optimizer.schedulers_step()
""",
    "gradients of one layer that are thrown away": """
class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.last = nn.Linear(8, 8), nn.Linear(8, 4)
        self.last = nn.utils.parametrizations.weight_norm(nn.Linear(8, 4))
    def forward(self, x): return self.last(self.body(x))
    def cancel(self, epoch):
        if epoch >= 1:
            return
        for p in self.last.parameters():
            p.grad = None
head = Head()
optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
for epoch in range(3):
    for x, y in loader:
        optimizer.zero_grad()
        criterion(head(x), y).backward()
        head.cancel(epoch)
        optimizer.step()
""",
    "train_that_keeps_parts_in_eval": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.is_frozen = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)), True

    def train(self, mode=True):
        super().train(mode)
        if self.is_frozen:
            for module in self.modules():
                if isinstance(module, nn.BatchNorm1d):
                    module.eval()

    def forward(self, x):
        return self.body(x)

net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for i, (x, y) in enumerate(loader):
    net.train()
    optimizer.zero_grad()
    criterion(net(x), y).backward()
    optimizer.step()
    if i % 100 == 0:
        net.eval()
        evaluate(net)
""",
    "methods_of_a_network_trained_and_a_call_evaluated": """
def update(model: Whisper, optimizer, x, y):
    model.train()
    with torch.no_grad():
        heard = model.embed(x)
    optimizer.zero_grad()
    criterion(model.logits(heard), y).backward()
    optimizer.step()


@torch.no_grad()
def evaluate(model: Whisper):
    model.eval()
    return sum(criterion(model(x), y).item() for x, y in others)


whisper = load_model("tiny")
optimizer = torch.optim.AdamW(whisper.parameters(), lr=1e-4)
for x, y in loader:
    update(whisper, optimizer, x, y)
    evaluate(whisper)
""",
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
def test_nothing_is_found_in_unusual_correct_code(name, tmp_path):
    assert found(HEAD + SILENT[name], tmp_path) == []
