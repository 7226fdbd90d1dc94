"""Loops of unusual shape, and the mistake that each can be given."""

from __future__ import annotations

from pathlib import Path

from gradlab.audit.file_audit import audit
from gradlab.audit.rules.registry import load_rules
from gradlab.audit.source.files import read
from gradlab.audit.source.project import Project

HEAD = """\
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

model = nn.Linear(8, 4)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
CLIP, STEP = "clip_grad_norm_(model.parameters(), 1.0)", "optimizer.step()"
Shapes = dict[str, tuple[str, str, str, str, str]]
"""By name: a correct text, a part of it, what replaces the part, the code of that mistake, a part of its line."""


def found(text: str, folder: Path) -> list[tuple[str, str]]:
    (folder / "a.py").write_text(text)
    selected = {c: r for c, r in load_rules().items() if r.severity != "advice"}
    findings = audit(read(folder / "a.py"), Project(), selected).findings
    return [(f.code, text.split("\n")[f.line - 1]) for f in findings]


def assert_silent(shape: tuple[str, str, str, str, str], folder: Path) -> None:
    assert found(HEAD + shape[0], folder) == []


def assert_broken(shape: tuple[str, str, str, str, str], folder: Path) -> None:
    text, old, new, code, at = shape
    assert old in text
    result = found(HEAD + text.replace(old, new), folder)
    assert {c for c, _ in result} == {code}
    assert any(at in line for _, line in result), result
