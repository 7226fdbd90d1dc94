"""Lightning's manual optimization beside hooks of the module."""

from pathlib import Path

import pytest
from audited_snippets import findings

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
    assert findings(MODULE.replace("HOOK", hook), tmp_path, "GL305") == {(15, "GL305")}


@pytest.mark.parametrize("body", ["self.tidy()", "self.zero_grad()", "self.optimizers().zero_grad()"])
def test_hooks_that_set_gradients_to_zero(tmp_path: Path, body: str) -> None:
    assert findings(MODULE.replace("HOOK", f"on_train_batch_end(self, *a): {body}"), tmp_path, "GL305") == set()


CONFIGURED = """        optimizer = torch.optim.Adam(self.parameters(), lr=1e-3)
        first = torch.optim.lr_scheduler.StepLR(optimizer, 10)
        second = torch.optim.lr_scheduler.StepLR(optimizer, 20)
        return """
RETURNED = {
    "one": ("[optimizer], [first]", "self.lr_schedulers()"),
    "a dictionary": ('{"optimizer": optimizer, "lr_scheduler": {"scheduler": first}}', "self.lr_schedulers()"),
    "two": ("[optimizer], [first, second]", "one, two = self.lr_schedulers(); one"),
}


@pytest.mark.parametrize("returned", RETURNED)
@pytest.mark.parametrize("early", [True, False])
def test_schedules_of_a_module(tmp_path: Path, returned: str, early: bool) -> None:
    given, mine = RETURNED[returned]
    text = MODULE.replace("        return torch.optim.Adam(self.parameters(), lr=1e-3)\n", f"{CONFIGURED}{given}\n")
    lines = [f"        {mine}.step()\n", "        optimizer.step()\n"]
    text = text.replace(lines[1], "".join(lines if early else lines[::-1])).replace("    def HOOK\n", "")
    expected = {(18, "GL402"), (19, "GL305")} if early else {(18, "GL305")}
    assert findings(text, tmp_path, "GL305", "GL402") == expected
