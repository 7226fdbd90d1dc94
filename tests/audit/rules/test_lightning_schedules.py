"""Schedules that Lightning steps once an epoch, whose lengths count updates."""

from __future__ import annotations

import pytest
from audited_snippets import findings

MODULE = """
import math
from functools import partial
import torch
from lightning import LightningModule
from schedules import decay, WarmupCosine
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LinearLR, SequentialLR
class Net(LightningModule):
    def __init__(self, samples, batch_size, max_epochs, warmup_epochs=3, devices=1):
        super().__init__()
        self.net = torch.nn.Linear(8, 4)
        self.max_epochs, self.warmup_epochs = max_epochs, warmup_epochs
        global_batch_size = devices * batch_size if devices > 0 else batch_size
        self.iters = samples // global_batch_size
        self.total = self.iters * max_epochs
        self.whole_epochs = self.total // self.iters
    def training_step(self, batch, i):
        return torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])
    def warmed_up(self, optimizer, steps, warmup):
        return LambdaLR(optimizer, partial(decay, steps=steps, warmup=warmup))
    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters())
        loader = self.trainer.datamodule.train_dataloader()
        warmup, total = self.iters * self.warmup_epochs, self.iters * self.max_epochs
        updates = self.iters * self.max_epochs
        {schedule}
        return [optimizer], [schedule]
"""
UPDATES = {
    "a function of rates that a call makes": "schedule = LambdaLR(optimizer, decay(updates, cosine=True))",
    "partial": "schedule = LambdaLR(optimizer, lr_lambda=partial(decay, total=self.total))",
    "a lambda": "schedule = LambdaLR(optimizer, lambda step: max(0.0, 1 - step / updates))",
    "a length that the module keeps": "schedule = CosineAnnealingLR(optimizer, self.total)",
    "a length that the module keeps, by name": "schedule = CosineAnnealingLR(optimizer, T_max=self.total)",
    "a method of the module": "schedule = self.warmed_up(optimizer, len(loader) * self.max_epochs, 10)",
    "a class that is not seen": "schedule = WarmupCosine(optimizer, int(0.1 * updates), updates)",
    "one after the other": (
        "schedule = SequentialLR(optimizer, [LinearLR(optimizer), CosineAnnealingLR(optimizer, 9)], [updates // 10])"
    ),
    "samples of all epochs, by the batch": (
        "whole = (self.max_epochs * self.samples) / (self.batch_size * self.devices)\n"
        "        schedule = LambdaLR(optimizer, decay(whole))"
    ),
    "Lightning's own": "schedule = LambdaLR(optimizer, decay(self.trainer.estimated_stepping_batches // 10))",
}
EPOCHS = {
    "a function of epochs": "schedule = LambdaLR(optimizer, decay(self.warmup_epochs, self.max_epochs))",
    "a lambda of epochs": "schedule = LambdaLR(optimizer, lambda epoch: 0.9 ** epoch)",
    "a lambda that counts the updates itself": (
        "schedule = LambdaLR(optimizer, lambda epoch: 1 - epoch * self.iters / updates)"
    ),
    "a lambda of the updates so far": (
        "schedule = LambdaLR(optimizer, lambda _: 1 - self.trainer.global_step / updates)"
    ),
    "updates by those of an epoch": "schedule = CosineAnnealingLR(optimizer, self.whole_epochs)",
    "updates by the loader": "schedule = CosineAnnealingLR(optimizer, T_max=updates // len(loader))",
    "steps by those of an epoch": "schedule = CosineAnnealingLR(optimizer, T_max=self.total_steps // steps_per_epoch)",
    "both, for a function that divides": "schedule = LambdaLR(optimizer, decay(updates, self.iters_per_epoch))",
    "the batches of one epoch, for a class that is not seen": "schedule = WarmupCosine(optimizer, self.iters, 100)",
    "per update": "schedule = {'scheduler': LambdaLR(optimizer, decay(updates)), 'interval': 'step'}",
    "per update, said later": (
        "schedule = {'scheduler': LambdaLR(optimizer, decay(updates))}\n        schedule['interval'] = 'step'"
    ),
}


@pytest.mark.parametrize("name", [*UPDATES, *EPOCHS])
def test_updates_are_not_counted_in_epochs(name, tmp_path):
    text = MODULE.replace("{schedule}", UPDATES.get(name) or EPOCHS[name])
    last = len(text.rstrip("\n").split("\n"))
    assert findings(text, tmp_path, "GL409") == ({(last, "GL409")} if name in UPDATES else set())


@pytest.mark.parametrize("plan", ["{'scheduler': schedule}", "{'scheduler': schedule, 'interval': 'epoch'}"])
def test_an_interval_is_an_epoch_unless_it_is_given(plan, tmp_path):
    text = MODULE.replace("{schedule}", UPDATES["partial"]).replace(
        "[optimizer], [schedule]", "{'optimizer': optimizer, 'lr_scheduler': " + plan + "}"
    )
    assert len(findings(text, tmp_path, "GL409")) == 1


def test_a_length_that_is_made_of_itself_is_not_followed_for_ever(tmp_path):
    text = MODULE.replace("{schedule}", "{body}").replace(
        "{body}", "half = half * 2\n        schedule = LambdaLR(optimizer, decay(half))"
    )
    assert findings(text, tmp_path, "GL409") == set()
