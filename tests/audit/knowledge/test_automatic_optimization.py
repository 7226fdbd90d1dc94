"""What a Lightning module returns from training_step() goes backward, though no line does it."""

from __future__ import annotations

import pytest
from audited_snippets import HEAD, expected, findings

MODULE = """
import lightning
from collections import OrderedDict
class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net, self.rows, self.loss = nn.Linear(8, 4), [], nn.CrossEntropyLoss()
    def training_step(self, batch, index):
        x, y = batch
        p = torch.sigmoid(self.net(x))
        BODY
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
"""
FIRST = """if index == 0:
            return -p.log().mean()  # expect: GL601
        return F.mse_loss(p, y)"""
CASES = {
    "a log": "return -torch.log(p).mean()  # expect: GL601",
    "a log in a dictionary": 'return {"loss": -p.log().mean(), "p": p.detach()}  # expect: GL601',
    "a log that goes nowhere": "self.log('p', p.log().mean()); return F.mse_loss(p, y)",
    "a root": "return torch.sqrt(F.mse_loss(p, y))  # expect: GL606",
    "a log in an ordered dictionary": 'return OrderedDict({"loss": -p.log().mean()})  # expect: GL601',
    "a log in a dictionary of pairs": 'return dict([("loss", -p.log().mean()), ("n", 1)])  # expect: GL601',
    "a log in the first of two losses": FIRST,
    "a loss function that is called loss": "return self.loss(p, y)  # expect: GL609",
    "a loss kept": "loss = F.mse_loss(p, y); self.rows.append(loss); return loss  # expect: GL605",
}


@pytest.mark.parametrize("name", CASES)
def test_the_loss_of_a_training_step_goes_backward(name, tmp_path):
    text = HEAD + MODULE.replace("BODY", CASES[name])
    assert findings(text, tmp_path) == expected(text)
