"""Accelerate's windows and contexts, and the optimizers that a Lightning module returns."""

from __future__ import annotations

import pytest
from audited_snippets import assert_faults

CASES = {
    "accelerate: zero at the head of accumulate drops all but the last micro-batch": """
from accelerate import Accelerator
def main(dl):
    accelerator = Accelerator(gradient_accumulation_steps=4)
    net, opt, dl = accelerator.prepare(nn.Linear(8, 4), optimizer, dl)
    for x, y in dl:
        with accelerator.accumulate(net):
            opt.zero_grad()  # expect: GL306
            loss = F.cross_entropy(net(x), y)
            accelerator.backward(loss)
            opt.step()
""",
    "accelerate: an optimizer that was not prepared": """
from accelerate import Accelerator
def main(dl):
    accelerator = Accelerator(gradient_accumulation_steps=4)
    net = nn.Linear(8, 4)
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
    net, dl = accelerator.prepare(net, dl)
    for x, y in dl:
        with accelerator.accumulate(net):
            loss = F.cross_entropy(net(x), y)
            accelerator.backward(loss)
            opt.step()  # no expect
            opt.zero_grad()
""",
    "accelerate autocast with backward inside is right": """
from accelerate import Accelerator
def main(dl):
    accelerator = Accelerator(mixed_precision="fp16")
    net, opt, dl = accelerator.prepare(nn.Linear(8, 4), optimizer, dl)
    for x, y in dl:
        with accelerator.autocast():
            loss = F.cross_entropy(net(x), y)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        opt.zero_grad()
""",
    "accelerate fp16 with torch clip": """
from accelerate import Accelerator
def main(dl):
    accelerator = Accelerator(mixed_precision="fp16")
    net, opt, dl = accelerator.prepare(nn.Linear(8, 4), optimizer, dl)
    for x, y in dl:
        with accelerator.autocast():
            loss = F.cross_entropy(net(x), y)
        accelerator.backward(loss)
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)  # expect: GL201
        opt.step()
        opt.zero_grad()
""",
    "accelerate zero_grad never": """
from accelerate import Accelerator
def main(dl):
    accelerator = Accelerator(gradient_accumulation_steps=4)
    net, opt, dl = accelerator.prepare(nn.Linear(8, 4), optimizer, dl)
    for x, y in dl:
        with accelerator.accumulate(net):
            with accelerator.autocast():
                loss = F.cross_entropy(net(x), y)
            accelerator.backward(loss)
            opt.step()  # expect: GL305
""",
    "accelerate divided": """
from accelerate import Accelerator
def main(dl, args):
    accelerator = Accelerator(gradient_accumulation_steps=args.gradient_accumulation_steps, mixed_precision=args.mixed_precision)
    net, opt, dl = accelerator.prepare(nn.Linear(8, 4), optimizer, dl)
    for x, y in dl:
        with accelerator.accumulate(net):
            with accelerator.autocast():
                loss = F.cross_entropy(net(x), y)
            loss = loss / args.gradient_accumulation_steps  # expect: GL302
            accelerator.backward(loss)
            opt.step()
            opt.zero_grad()
""",
    "accelerate clip before backward... clip each micro": """
from accelerate import Accelerator
def main(dl):
    accelerator = Accelerator(gradient_accumulation_steps=4)
    net, opt, dl = accelerator.prepare(nn.Linear(8, 4), optimizer, dl)
    for x, y in dl:
        with accelerator.accumulate(net):
            loss = F.cross_entropy(net(x), y)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(net.parameters(), 1.0)  # expect: GL304
            opt.step()
            opt.zero_grad()
""",
    "accelerate clip at sync is right": """
from accelerate import Accelerator
def main(dl):
    accelerator = Accelerator(gradient_accumulation_steps=4)
    net, opt, dl = accelerator.prepare(nn.Linear(8, 4), optimizer, dl)
    for x, y in dl:
        with accelerator.accumulate(net):
            loss = F.cross_entropy(net(x), y)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(net.parameters(), 1.0)
            opt.step()
            opt.zero_grad()
""",
    "accelerate manual modulo": """
from accelerate import Accelerator
def main(dl, n):
    accelerator = Accelerator()
    net, opt, dl = accelerator.prepare(nn.Linear(8, 4), optimizer, dl)
    for i, (x, y) in enumerate(dl):
        with accelerator.autocast():
            loss = F.cross_entropy(net(x), y)
        accelerator.backward(loss)  # expect: GL301
        if (i + 1) % n == 0:
            opt.step()
            opt.zero_grad()
""",
    "lightning dict manual, two optimizers": """
import lightning as L
class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(8, 4)
        self.automatic_optimization = False
    def configure_optimizers(self):
        opt = torch.optim.AdamW(self.net.parameters(), lr=1e-3)
        sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 100)
        return {"optimizer": opt, "lr_scheduler": {"scheduler": sched, "interval": "step"}}
    def training_step(self, batch, batch_idx):
        x, y = batch
        opt = self.optimizers()
        loss = F.cross_entropy(self.net(x), y)
        self.manual_backward(loss)
        opt.step()  # expect: GL305
        self.lr_schedulers().step()
""",
    "lightning dict schedule before": """
import lightning as L
class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(8, 4)
        self.automatic_optimization = False
    def configure_optimizers(self):
        opt = torch.optim.AdamW(self.net.parameters(), lr=1e-3)
        sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 100)
        return {"optimizer": opt, "lr_scheduler": {"scheduler": sched, "interval": "step"}}
    def training_step(self, batch, batch_idx):
        x, y = batch
        opt, sch = self.optimizers(), self.lr_schedulers()
        opt.zero_grad()
        loss = F.cross_entropy(self.net(x), y)
        self.manual_backward(loss)
        sch.step()  # expect: GL402
        opt.step()
""",
    "lightning two optimizers as tuple of dicts": """
import lightning as L
class Gan(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.g = nn.Linear(8, 8)
        self.d = nn.Linear(8, 1)
        self.automatic_optimization = False
    def configure_optimizers(self):
        og = torch.optim.Adam(self.g.parameters(), lr=1e-3)
        od = torch.optim.Adam(self.d.parameters(), lr=1e-3)
        return ({"optimizer": og, "lr_scheduler": torch.optim.lr_scheduler.StepLR(og, 10)}, {"optimizer": od})
    def training_step(self, batch, batch_idx):
        og, od = self.optimizers()
        od.zero_grad()
        ld = F.binary_cross_entropy_with_logits(self.d(batch), torch.ones(2, 1))
        self.manual_backward(ld)
        od.step()
        lg = F.binary_cross_entropy_with_logits(self.d(self.g(batch)), torch.ones(2, 1))
        self.manual_backward(lg)
        og.step()  # expect: GL305
""",
    "lightning list of optimizers and schedulers right": """
import lightning as L
class Gan(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.g = nn.Linear(8, 8)
        self.d = nn.Linear(8, 1)
        self.automatic_optimization = False
    def configure_optimizers(self):
        og = torch.optim.Adam(self.g.parameters(), lr=1e-3)
        od = torch.optim.Adam(self.d.parameters(), lr=1e-3)
        return [{"optimizer": og}, {"optimizer": od}]
    def training_step(self, batch, batch_idx):
        og, od = self.optimizers()
        ld = F.binary_cross_entropy_with_logits(self.d(batch), torch.ones(2, 1))
        od.zero_grad()
        self.manual_backward(ld)
        od.step()
        lg = F.binary_cross_entropy_with_logits(self.d(self.g(batch)), torch.ones(2, 1))
        og.zero_grad()
        self.manual_backward(lg)
        og.step()
""",
    "accelerate: made with a dictionary without a window": """
from accelerate import Accelerator
def main(dl, settings):
    options = {"mixed_precision": "bf16"}
    pass
    accelerator = Accelerator(**options)
    net, opt, dl = accelerator.prepare(nn.Linear(8, 4), optimizer, dl)
    for i, (x, y) in enumerate(dl):
        accelerator.backward(F.cross_entropy(net(x), y))  # expect: GL301
        if (i + 1) % 4 == 0:
            opt.step()
            opt.zero_grad()
""",
    "accelerate: made with a dictionary that receives a window": """
from accelerate import Accelerator
def main(dl, settings):
    options = {"mixed_precision": "bf16"}
    options["gradient_accumulation_steps"] = 4
    accelerator = Accelerator(**options)
    net, opt, dl = accelerator.prepare(nn.Linear(8, 4), optimizer, dl)
    for i, (x, y) in enumerate(dl):
        accelerator.backward(F.cross_entropy(net(x), y))
        if (i + 1) % 4 == 0:
            opt.step()
            opt.zero_grad()
""",
    "accelerate: made with a dictionary that may receive a window": """
from accelerate import Accelerator
def main(dl, settings):
    options = {"mixed_precision": "bf16"}
    options.update(settings)
    accelerator = Accelerator(**options)
    net, opt, dl = accelerator.prepare(nn.Linear(8, 4), optimizer, dl)
    for i, (x, y) in enumerate(dl):
        accelerator.backward(F.cross_entropy(net(x), y))
        if (i + 1) % 4 == 0:
            opt.step()
            opt.zero_grad()
""",
}


@pytest.mark.parametrize("name", CASES)
def test_marked_lines_are_found_and_no_other_fault(name, tmp_path):
    assert_faults(CASES[name], tmp_path)
