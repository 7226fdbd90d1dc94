"""The examples of the codes, audited: the wrong one has the mistake, and in the right one nothing is found."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gradlab.audit.file_audit import audit
from gradlab.audit.rules.registry import load_rules
from gradlab.audit.source.files import Source, parse
from gradlab.audit.source.project import Project
from gradlab.codes import CODES, UNREADABLE

HEAD = """\
import math
from contextlib import nullcontext
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import CosineAnnealingLR
from transformers import TrainingArguments
from lightning import LightningModule, Trainer

model = nn.Linear(8, 4)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
USED = {
    "scaler.": "scaler = torch.amp.GradScaler('cuda')\n",
    "scheduler.": "scheduler = CosineAnnealingLR(optimizer, T_max=10)\n",
    "no_sync": "model = DistributedDataParallel(model)\n",
    "judge(": "maker, judge = nn.Linear(8, 8), nn.Linear(8, 1)\n"
    "first = torch.optim.SGD(judge.parameters(), lr=0.1)\n"
    "second = torch.optim.SGD(maker.parameters(), lr=0.1)\n",
    "critic(": "actor, critic = nn.Linear(8, 4), nn.Linear(8, 1)\n"
    "optimizer = torch.optim.SGD([*actor.parameters(), *critic.parameters()], lr=0.1)\n",
    "value(": "value = nn.Linear(8, 1)\noptimizer = torch.optim.SGD(value.parameters(), lr=0.1)\n",
}
"""What an example may use that comes before its loop."""
WHOLE = (
    *("for ", "from ", "class ", "nn.Sequential", "Trainer", "TrainingArguments"),
    *("scaler = ", "updates = ", "model = ", "scheduler = ", "total = "),
)
"""How an example begins that is a whole program."""
FOUND_BY_AUDIT = [code for code, kind in CODES.items() if "audit" in kind.found_by and code != UNREADABLE]


def script(example: str) -> str:
    """A script around an example: its loop, the forward pass that it leaves out, the step that follows."""
    example = re.sub(r", \.\.\.\)", ")", example)
    head = HEAD + "".join(line for word, line in USED.items() if word in example)
    if example.startswith("def "):
        return f"{head}class Mine(LightningModule):\n" + indented(example.split("\n"))
    if example.startswith(WHOLE) and "loss = criterion" not in example:
        return head + example
    if example.startswith("model = "):
        first, example = example.split("\n", 1)
        head += first + "\n"
    scaled = "scaler." in example
    before, after = [], []
    if "loss =" not in example and "criterion" not in example:
        cast = "with torch.autocast('cuda', dtype=torch.float16):" if scaled else "if True:"
        before += [cast, "    loss = criterion(model(x), y)"]
    before += ["pred = logits = model(x)", "target = y"] if "pred" in example or "logits" in example else []
    if "backward" not in example:
        (after if "loss =" in example else before).append(
            "scaler.scale(loss).backward()" if scaled else "loss.backward()"
        )
    if not re.search(r"(optimizer|scaler)\.step\(", example):
        after += ["scaler.step(optimizer)", "scaler.update()"] if scaled else ["optimizer.step()"]
    after += [] if "zero_grad" in example else ["optimizer.zero_grad()"]
    return f"{head}for i, (x, y) in enumerate(loader):\n" + indented([*before, *example.split("\n"), *after])


def indented(lines: list[str]) -> str:
    return "".join(f"    {line}\n" for line in lines)


def found(text: str, select: list[str] | None = None) -> set[str]:
    """Codes that the audit finds. select: the only rules, in place of all that are on by default."""
    source = Source(Path("a.py"), text)
    parse(source)
    assert source.error is None
    rules_of = {c: rule for c, rule in load_rules().items() if (c in select if select else rule.default)}
    return {finding.code for finding in audit(source, Project(), rules_of).findings}


@pytest.mark.parametrize("code", CODES)
def test_the_audit_finds_nothing_in_a_right_example(code):
    assert found(script(CODES[code].example)) == set()


@pytest.mark.parametrize("code", FOUND_BY_AUDIT)
def test_the_audit_finds_the_mistake_in_a_wrong_example(code):
    assert code in found(script(CODES[code].wrong), [code])
