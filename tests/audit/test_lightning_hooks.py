"""Lightning's manual optimization beside hooks of one's own."""

from pathlib import Path

import pytest
from marked import said

MODULE = """
import torch
import lightning as L
class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.net = torch.nn.Linear(3, 3)
    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)
    def training_step(self, batch, batch_idx):
        optimizer = self.optimizers()
        loss = self.net(batch).mean()
        self.manual_backward(loss)
        optimizer.step()
        return loss
    def tidy(self):
        self.optimizers().zero_grad()
    def HOOK
"""


@pytest.mark.parametrize("hook", ["on_train_epoch_end(self): self.lr_schedulers().step()", "on_fit_start(self): pass"])
def test_hooks_that_leave_gradients_alone(tmp_path: Path, hook: str) -> None:
    assert said(MODULE.replace("HOOK", hook), tmp_path, "GL305") == {(15, "GL305")}


@pytest.mark.parametrize("body", ["self.tidy()", "self.zero_grad()", "self.optimizers().zero_grad()"])
def test_hooks_that_set_gradients_to_zero(tmp_path: Path, body: str) -> None:
    assert said(MODULE.replace("HOOK", f"on_train_batch_end(self, *a): {body}"), tmp_path, "GL305") == set()
