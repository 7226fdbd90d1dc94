"""What `--explain` tells: one line of what is wrong, a page that is there, and a mend that is itself right."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gradlab.audit.file_audit import audit
from gradlab.audit.rules.registry import load_rules
from gradlab.audit.source.files import Source, parse
from gradlab.audit.source.project import Project
from gradlab.codes import CODES

ROOT = Path(__file__).parents[2]
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
}
"""What an example may use that comes before its loop."""
WHOLE = ("for ", "nn.Sequential", "Trainer", "TrainingArguments", "scaler = ", "updates = ", "model = ")


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


@pytest.mark.parametrize("code", CODES)
def test_the_audit_has_nothing_to_say_of_its_own_examples(code):
    source = Source(Path("a.py"), script(CODES[code].example))
    parse(source)
    every = {name: rule for name, rule in load_rules().items() if rule.default}
    assert source.error is None
    assert [(f.code, f.line) for f in audit(source, Project(), every).findings] == []


@pytest.mark.parametrize("code", CODES)
def test_a_message_is_a_line_and_its_reason_a_sentence(code):
    told = CODES[code]
    assert "\n" not in told.message and len(told.message) <= 120 and not told.message.endswith(".")
    assert re.search(r"[.)]$", told.why) and told.why[0].isupper()


@pytest.mark.parametrize("code", CODES)
def test_what_it_refers_to_is_there(code):
    readme = (ROOT / "README.md").read_text()
    pitfalls = "".join(p.read_text() for p in (ROOT / "gradlab" / "pitfalls").glob("*.py"))
    for name in re.findall(r"pitfall (\w+)", CODES[code].why):
        assert f"`{name}`" in readme and re.search(rf'"{name}"|(def|class) {name}\b', pitfalls)
    for name in re.findall(r"experiments/(\w+)", CODES[code].why):
        assert (ROOT / "experiments" / name / "README.md").is_file()
