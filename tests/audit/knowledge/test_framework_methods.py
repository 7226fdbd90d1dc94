"""Lightning, Accelerate, Fabric and Apex: what they do by themselves."""

from __future__ import annotations

import pytest
from audited_snippets import HEAD, assert_marked, expected, findings

CASES = {
    "the model taken out of Accelerate's wrapper": """
from accelerate import Accelerator
accelerator = Accelerator()
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for x, y in loader:
    optimizer.zero_grad()
    loss = F.cross_entropy(accelerator.unwrap_model(model)(x), y)  # expect: GL504
    accelerator.backward(loss)
    optimizer.step()
""",
    "clipping in Lightning's training_step": """
import lightning
class Net(lightning.LightningModule):
    def training_step(self, batch, i):
        loss = F.cross_entropy(self(batch[0]), batch[1])
        nn.utils.clip_grad_norm_(self.parameters(), 1.0)  # expect: GL102
        return loss
class Manual(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
    def training_step(self, batch, i):
        opt = self.optimizers()
        opt.zero_grad()
        self.manual_backward(F.cross_entropy(self(batch[0]), batch[1]))
        nn.utils.clip_grad_norm_(self.parameters(), 1.0)
        opt.step()
""",
    "a schedule that Accelerate did not prepare": """
from accelerate import Accelerator
accelerator = Accelerator(gradient_accumulation_steps=4)
free = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
held = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
model, optimizer, held = accelerator.prepare(model, optimizer, held)
for x, y in loader:
    with accelerator.accumulate(model):
        accelerator.backward(F.cross_entropy(model(x), y))
        optimizer.step()
        free.step()  # expect: GL401
        held.step()
        optimizer.zero_grad()
""",
    "a schedule that Accelerate prepared, and windows that it does not know": """
from accelerate import Accelerator
accelerator = Accelerator()
held = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
model, optimizer, held = accelerator.prepare(model, optimizer, held)
for i, (x, y) in enumerate(loader):
    accelerator.backward(F.cross_entropy(model(x), y) / 4)  # expect: GL308
    if (i + 1) % 4 == 0 or i + 1 == len(loader):
        optimizer.step()
        optimizer.zero_grad()
    held.step()  # expect: GL401
""",
    "Accelerate without a window": """
from accelerate import Accelerator
accelerator = Accelerator()
free = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
model, optimizer = accelerator.prepare(model, optimizer)
for x, y in loader:
    with accelerator.accumulate(model):
        accelerator.backward(F.cross_entropy(model(x), y))
        optimizer.step()
        free.step()
        optimizer.zero_grad()
""",
    "training_step of a module that optimizes by itself": """
import lightning
class Lit(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.net = nn.Linear(8, 4)
    def training_step(self, batch, i):
        opt = self.optimizers()
        self.manual_backward(F.cross_entropy(self.net(batch[0]), batch[1]))
        opt.step()  # expect: GL305
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
class Zeroed(Lit):
    def on_train_batch_start(self, batch, i):
        self.optimizers().zero_grad()
""",
    "a toggled optimizer is not received by an unknown call": """
from lightning import LightningModule
class Two(LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.net = nn.Linear(8, 4)
    def training_step(self, batch, batch_idx):
        opt = self.optimizers()
        self.toggle_optimizer(opt)
        loss = F.mse_loss(self.net(batch[0]), batch[1])
        self.manual_backward(loss)  # expect: GL301
        if (batch_idx + 1) % 4 == 0 or self.trainer.is_last_batch:
            opt.step()
            opt.zero_grad()
        self.untoggle_optimizer(opt)
    def configure_optimizers(self):
        return torch.optim.SGD(self.net.parameters(), lr=0.1)
""",
    "Fabric reduces in the forward pass, too": """
from lightning.fabric import Fabric
fabric = Fabric(devices=2)
model, optimizer = fabric.setup(model, optimizer)
for i, (x, y) in enumerate(loader):
    part = (i + 1) % 4 != 0
    loss = F.cross_entropy(model(x), y) / 4
    with fabric.no_backward_sync(model, enabled=part):  # expect: GL503
        fabric.backward(loss)
    if not part:  # expect: GL307
        optimizer.step()
        optimizer.zero_grad()
""",
    "Accelerate's own scaler, and a clip past it": """
from accelerate import Accelerator
accelerator = Accelerator(mixed_precision="fp16")
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for x, y in loader:
    optimizer.zero_grad()
    accelerator.backward(F.cross_entropy(model(x), y))
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # expect: GL201
    optimizer.step()
for x, y in loader:
    optimizer.zero_grad()
    accelerator.backward(F.cross_entropy(model(x), y))
    accelerator.unscale_gradients(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
""",
    "Accelerate in bf16 does not scale the loss": """
from accelerate import Accelerator
accelerator = Accelerator(mixed_precision="bf16")
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for x, y in loader:
    optimizer.zero_grad()
    accelerator.backward(F.cross_entropy(model(x), y))
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
""",
    "Fabric's own scaler, and a clip past it": """
from lightning.fabric import Fabric
fabric = Fabric(precision="16-mixed")
model, optimizer = fabric.setup(model, optimizer)
for x, y in loader:
    optimizer.zero_grad()
    fabric.backward(F.cross_entropy(model(x), y))
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # expect: GL201
    optimizer.step()
""",
    "Apex where a flag asks for it": """
from apex import amp
def run(args, model, loader):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if args.apex:
        model, optimizer = amp.initialize(model, optimizer, opt_level="O1")
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        if args.apex:
            with amp.scale_loss(loss, optimizer) as scaled_loss:
                scaled_loss.backward()
        else:
            loss.backward()
        optimizer.step()
""",
    "arguments of trainers": """
from lightning import Trainer
from transformers import TrainingArguments
Trainer(gradient_clip_val=0.5, gradient_clip_algorithm="value")  # expect: GL810
Trainer(gradient_clip_val=1.0, gradient_clip_algorithm="norm")
TrainingArguments("out", max_grad_norm=1e-3)  # expect: GL811
TrainingArguments("out", max_grad_norm=1.0)
Trainer(gradient_clip_val=0.001)  # expect: GL811
""",
}
CASES |= {
    "clips by value": """
from accelerate import Accelerator
from lightning.fabric import Fabric
accelerator, fabric = Accelerator(), Fabric()
net, opt, data = accelerator.prepare(model, optimizer, loader)
for x, y in data:
    opt.zero_grad()
    accelerator.backward(F.cross_entropy(net(x), y))
    accelerator.clip_grad_value_(net.parameters(), 1.0)  # expect: GL801
    opt.step()
one, two = fabric.setup(model, optimizer)
for x, y in loader:
    two.zero_grad()
    fabric.backward(F.cross_entropy(one(x), y))
    fabric.clip_gradients(one, two, clip_val=1.0)  # expect: GL801
    two.step()
for x, y in loader:
    two.zero_grad()
    fabric.backward(F.cross_entropy(one(x), y))
    fabric.clip_gradients(one, two, max_norm=1.0)
    two.step()
""",
}


@pytest.mark.parametrize("name", CASES)
def test_marked_lines_are_found_and_nothing_else(name, tmp_path):
    assert_marked(CASES[name], tmp_path)


CHOSEN = """
from accelerate import Accelerator
accelerator = Accelerator()
maker, judge = nn.Linear(8, 8), nn.Linear(8, 1)
first = torch.optim.SGD(judge.parameters(), lr=0.1)
second = torch.optim.SGD(maker.parameters(), lr=0.1)
for epoch in range(9):
    for x, y in loader:
        made = maker(x)
        if epoch > 2:
            first.zero_grad()
            wrong = judge({made}).mean()
            accelerator.backward(wrong)
            first.step()
        second.zero_grad()
        if epoch > 2:
            loss = F.l1_loss(made, y) - judge(made).mean()
        else:
            loss = F.l1_loss(made, y)
        accelerator.backward(loss){mark}
        second.step()
"""


@pytest.mark.parametrize(("made", "mark"), [("made", "  # expect: GL719"), ("made.detach()", "")])
def test_an_accelerator_goes_backward_through_the_one_of_several_losses(made, mark, tmp_path):
    text = HEAD + CHOSEN.format(made=made, mark=mark)
    assert findings(text, tmp_path, "GL719") == expected(text)
