"""Correct loops of many shapes, each broken in one way: that rule fires, at that line, and no other error or warning."""

from __future__ import annotations

from pathlib import Path

import pytest
from loop_shapes import assert_broken

RIGHT = Path(__file__).parent / "right"
UNSCALE = "        if self.scaler is not None:\n            self.scaler.unscale_(self.optimizer)\n"
CLIP = "        if self.max_norm:\n            nn.utils.clip_grad_norm_(self.model.parameters(), self.max_norm)\n"
BROKEN = [
    ("methods", UNSCALE, "", "GL201", "clip_grad_norm_"),
    ("methods", UNSCALE + CLIP, CLIP + UNSCALE, "GL201", "clip_grad_norm_"),
    ("methods", UNSCALE, UNSCALE + UNSCALE.replace("unscale_(self", "unscale_( self"), "GL202", "unscale_( self"),
    ("methods", "            self.scaler.update()\n", "", "GL205", "self.scaler.step("),
    ("methods", "            self.scaler.step(self.optimizer)\n", "            self.optimizer.step()  #\n", "GL204", "step()  #"),
    ("methods", "        self.optimizer.zero_grad()\n\n    def fit", "\n    def fit", "GL305", "self.scaler.step("),
    ("methods", " / self.accumulation", "", "GL301", "scale(loss).backward()"),
    ("methods", "            self.backward(loss)\n", "            self.optimizer.zero_grad()  #\n            self.backward(loss)\n", "GL306", "zero_grad()  #"),
    ("methods", "            self.backward(loss)\n", "            self.backward(loss)\n            self.scheduler.step()  #\n", "GL401", "self.scheduler.step()  #"),
    ("methods", "total += loss.item()", "total += loss", "GL605", "total += loss"),
    ("gan", "        g_optimizer.zero_grad()\n", "", "GL305", "        g_optimizer.step()"),
    ("gan", "    d_optimizer.zero_grad()\n", "", "GL305", "    d_optimizer.step()"),
    ("gan", "    d_loss.backward()\n", "    d_loss.backward()\n    d_optimizer.zero_grad()  #\n", "GL103", "zero_grad()  #"),
    ("lbfgs", "        optimizer.zero_grad()\n", "", "GL305", "optimizer.step(closure)"),
    ("nano", "        scaler.unscale_(optimizer)\n", "", "GL201", "clip_grad_norm_"),
    ("nano", "            loss = loss / gradient_accumulation_steps\n", "", "GL301", "scaler.scale(loss).backward()"),
    ("nano", "    scaler.update()\n", "", "GL205", "scaler.step(optimizer)"),
    ("nano", "    optimizer.zero_grad(set_to_none=True)\n", "", "GL305", "scaler.step(optimizer)"),
    ("flags", "            if args.amp:\n                scaler.unscale_(optimizer)\n", "", "GL201", "clip_grad_norm_"),
    ("flags", "        if args.accum > 1:\n            loss = loss / args.accum\n", "", "GL301", "scaler.scale(loss).backward()"),
    ("flags", "            counter = 0\n            if scheduler is not None:\n                scheduler.step()\n", "            counter = 0\n        if scheduler is not None:\n            scheduler.step()\n", "GL401", "scheduler.step()"),
    ("epochs", "        optimizer.zero_grad()\n", "", "GL305", "optimizer.step()"),
    ("epochs", "        loss.backward()\n        optimizer.step()\n", "        loss.backward()\n        optimizer.step()\n        nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n", "GL101", "clip_grad_norm_"),
    ("rl", "        self.actor_optim.zero_grad()\n        actor_loss.backward()\n", "        actor_loss.backward()\n        self.actor_optim.zero_grad()\n", "GL103", "self.actor_optim.zero_grad()"),
    ("rnn_windows", "    opt.step()\n", "    opt.step()\n    nn.utils.clip_grad_norm_(model.parameters(), 2.0)\n", "GL101", "2.0"),
    ("chunks", "    for p in model.parameters():\n        p.grad = None\n", "", "GL305", "opt.step()"),
    ("two_losses", "    scaler.unscale_(ob)\n", "", "GL201", "b.parameters(), 1.0"),
    ("two_losses", "    scaler.step(ob)\n", "    ob.step()\n", "GL204", "ob.step()"),
    ("ddp", "(i + 1) % accumulation_steps != 0 and", "i % accumulation_steps != 0 and", "GL502", "model.no_sync()"),
    ("lightning_manual", "            self.clip_gradients(opt, gradient_clip_val=1.0)\n            opt.step()\n", "            opt.step()\n            self.clip_gradients(opt, gradient_clip_val=1.0)\n", "GL101", "clip_gradients"),
    ("lightning_manual", " / 4", "", "GL301", "manual_backward"),
    ("fabric", " / 4", "", "GL301", "fabric.backward"),
    ("fabric", "enabled=accumulating", "enabled=not accumulating", "GL502", "no_backward_sync"),
    ("timm", " / window", "", "GL301", "loss_scaler(loss"),
    ("accumulation", "scaler.unscale_(optimizer)\n", "pass\n", "GL201", "clip_grad_norm_"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "old", "new", "code", "at"), BROKEN, ids=[f"{b[0]}-{b[3]}-{i}" for i, b in enumerate(BROKEN)]
)
def test_exactly_that_rule_fires_at_the_line(name, old, new, code, at, tmp_path):
    assert_broken(((RIGHT / f"{name}.py").read_text(), old, new, code, at), tmp_path, head="", count=1)
