"""A loss divided by the length of the window for a framework that divides it too."""

from __future__ import annotations

import pytest
from audited_snippets import assert_faults

TRAINER = """
from transformers import Trainer
class Own(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False{more}):
        outputs = model(**inputs)
        loss = F.cross_entropy(outputs.logits, inputs["labels"]){division}
        return (loss, outputs) if return_outputs else loss
"""
LIGHTNING = """
import lightning
class Net(lightning.LightningModule):
    def training_step(self, batch, i):
        x, y = batch
        loss = F.cross_entropy(self.net(x), y)
        {division}
        return {{"loss": loss}}
"""
ENGINE = """
import deepspeed
def train(args, batches):
    engine, _, _, _ = deepspeed.initialize(args, model, model_parameters=model.parameters())
    for i, (x, y) in enumerate(batches):
        loss = F.cross_entropy(engine(x), y) / args.gradient_accumulation_steps
        {step}
"""
BY_ENGINE = "F.cross_entropy(engine(x), y) / args.gradient_accumulation_steps"
SAMPLES = """
criterion = nn.CrossEntropyLoss({reduction})
for x, y in loader:
    rows = y.shape[0]
    optimizer.zero_grad()
    loss = criterion(model(x), y)
    loss = loss / {by}
    loss.backward()
    optimizer.step()
"""
EACH = """
for x, y in loader:
    optimizer.zero_grad()
    loss = 0.0
    for one, goal in zip(x, y):
        loss += F.mse_loss(model(one), goal)
    (loss / x.size(0)).backward()
    optimizer.step()
"""
BY_STEPS = " / self.args.gradient_accumulation_steps"
BY_BATCHES = "loss = loss / self.trainer.accumulate_grad_batches"
MARK = "  # expect: GL302"
PLUGIN = """
from accelerate import Accelerator, DeepSpeedPlugin
n = 4
accelerator = Accelerator(deepspeed_plugin=DeepSpeedPlugin(gradient_accumulation_steps=n))
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for i, (x, y) in enumerate(loader):
    loss = F.cross_entropy(model(x), y)
    accelerator.backward({loss})
    if (i + 1) % n == 0:
        optimizer.step()
        optimizer.zero_grad()
"""
TERMS = """
for x, y in loader:
    for part in range(n):
        loss = F.cross_entropy(model(x[part]), y[part]) / {one} + model(x[part]).square().mean()
        loss = loss / n
        ({loss}).backward(){mark}
    optimizer.step()
    optimizer.zero_grad()
"""
TWICE = {
    "transformers": TRAINER.format(more="", division=BY_STEPS + MARK),
    "Lightning": LIGHTNING.format(division=BY_BATCHES + MARK),
    "DeepSpeed": ENGINE.format(step="engine.backward(loss)\n        engine.step()").replace(
        BY_ENGINE, BY_ENGINE + MARK
    ),
    "DeepSpeed in Accelerate": PLUGIN.format(loss="loss / n").replace("loss / n)", f"loss / n){MARK}"),
    "a mean, by the samples of the batch": SAMPLES.format(reduction="", by="y.size(0)" + MARK),
    "a mean, by a number that is bound to a name": SAMPLES.format(reduction="", by="rows" + MARK),
    "the loop, of a sum of terms": TERMS.format(one="classes", loss="loss / n", mark=MARK),
}
ONCE = {
    "by the trainer": TRAINER.format(more="", division=""),
    "where transformers leaves it to the method": TRAINER.format(more=", num_items_in_batch=None", division=BY_STEPS),
    "where transformers may leave it to the method": TRAINER.format(more=", **kwargs", division=BY_STEPS),
    "a sum, by the samples of the batch": SAMPLES.format(reduction="reduction='sum'", by="y.size(0)"),
    "a mean, by the batches of the epoch": SAMPLES.format(reduction="", by="len(loader)"),
    "a sum of means of single samples": EACH,
    "for the log": LIGHTNING.format(
        division=BY_BATCHES.replace("loss =", "shown =") + "\n        self.log('a', shown)"
    ),
    "by DeepSpeed in Accelerate": PLUGIN.format(loss="loss"),
    "by the loop, and its terms by something else": TERMS.format(one="classes", loss="loss", mark=""),
    "by the loop": ENGINE.format(step="engine.backward(loss, scale_wrt_gas=False)\n        engine.step()"),
    "in a window of the loop's own": ENGINE.format(
        step="engine.backward(loss)\n        if (i + 1) % args.gradient_accumulation_steps == 0:\n            engine.step()"
    ),
}


@pytest.mark.parametrize("name", TWICE)
def test_a_loss_that_the_framework_divides_too_is_found(name, tmp_path):
    assert_faults(TWICE[name], tmp_path)


@pytest.mark.parametrize("name", ONCE)
def test_a_loss_that_is_divided_once_is_right(name, tmp_path):
    assert_faults(ONCE[name], tmp_path)
