"""Clipping in what a trainer calls."""

from __future__ import annotations

from pathlib import Path

import pytest
from audited_snippets import assert_marked

LIGHTNING = """
import math, lightning as L
from torch.nn.utils import clip_grad_norm_
class Late(L.Callback):
    def on_train_batch_end(self, trainer, module, *rest):
        clip_grad_norm_(module.parameters(), 1.0)  # expect: GL101
class Early(L.Callback):
    def on_before_backward(self, trainer, module, loss):
        if trainer.global_step:
            clip_grad_norm_(module.parameters(), 1.0)  # expect: GL102
class InTime(L.Callback):
    def on_before_optimizer_step(self, trainer, module, optimizer):
        clip_grad_norm_(module.parameters(), 1.0)
    def on_train_batch_end(self, trainer, module, *rest):
        self.norm = clip_grad_norm_(module.parameters(), max_norm=float("inf"))
class Net(L.LightningModule):
    def training_step(self, batch, index):
        clip_grad_norm_(self.parameters(), 1.0)  # expect: GL102
        return self(batch).mean()
    def on_before_zero_grad(self, optimizer):
        clip_grad_norm_(self.parameters(), 1.0)  # expect: GL101
class ByHand(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
    def on_train_batch_end(self, *rest):
        clip_grad_norm_(self.parameters(), 1.0)
        self.optimizers().step()
"""
CASES = {
    "lightning": LIGHTNING,
    "transformers": """
from transformers import TrainerCallback
class Late(TrainerCallback):
    def on_step_end(self, args, state, control, model=None, **more):
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # expect: GL101
    def on_optimizer_step(self, args, state, control, model=None, **more):
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # expect: GL101
    def on_substep_end(self, args, state, control, model=None, **more):
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # expect: GL304
    def on_pre_optimizer_step(self, args, state, control, model=None, **more):
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
""",
    "the loss of a trainer of transformers": """
from transformers import Trainer
class Keeping(Trainer):
    total, seen = 0, []
    def compute_loss(self, model, inputs, return_outputs=False, **more):
        outputs = model(**inputs)
        loss = F.cross_entropy(outputs.logits, inputs["labels"]) / self.args.gradient_accumulation_steps
        self.total += loss  # expect: GL605
        return (loss, outputs) if return_outputs else loss
class Early(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **more):
        loss = model(**inputs).loss
        self.seen.append(loss.item())
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # expect: GL102
        return loss
""",
    "an object beside a trainer of transformers": """
from transformers import AutoModel
class Objective:
    total = 0
    def compute_loss(self, model, inputs):
        loss = model(**inputs).loss
        self.total += loss
        return loss
""",
    "a trainer of the project": """
from mine import Trainer
class Own(Trainer):
    def compute_loss(self, model, inputs):
        loss = model(**inputs).loss
        self.total += loss
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        return loss
""",
    "fastai": """
from fastai.callback.core import Callback
class Clip(Callback):
    def after_step(self): nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)  # expect: GL101
    def before_backward(self): nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)  # expect: GL102
    def before_step(self): nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
""",
    "callbacks of something else": """
from keras.callbacks import Callback
class Own(Callback):
    def after_step(self): nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
    def on_train_batch_end(self, *rest): nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
    def on_step_end(self, *rest): nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
""",
}


@pytest.mark.parametrize("case", CASES)
def test_each_is_reported_where_it_is_called(case: str, tmp_path: Path) -> None:
    assert_marked(CASES[case], tmp_path)
