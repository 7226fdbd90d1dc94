"""Calls that cannot be followed matter where they come between two others."""

from pathlib import Path

from audited_snippets import findings

LOOP = """
import torch
class Trainer:
    def __init__(self, net, hooks):
        self.net, self.hooks = net, hooks
        self.optimizer = torch.optim.SGD(net.parameters(), 0.1)
        self.scaler = torch.amp.GradScaler("cuda")
    def fit(self, data):
        for batch in data:
            self.optimizer.zero_grad()
            with torch.autocast("cuda"):
                loss = self.net(batch).mean()
            self.scaler.scale(loss).backward()
            FIRST
            torch.nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
            self.scaler.step(self.optimizer)
            self.scaler.update()
            LAST
"""
HOOK = "self.hooks[0](self)"


def test_a_call_between_backward_and_clip_may_unscale(tmp_path: Path) -> None:
    assert findings(LOOP.replace("FIRST", HOOK).replace("LAST", "pass"), tmp_path, "GL201") == set()


def test_a_call_behind_the_update_does_not_unscale(tmp_path: Path) -> None:
    assert findings(LOOP.replace("FIRST", "pass").replace("LAST", HOOK), tmp_path, "GL201") == {(15, "GL201")}
