"""Loops of unusual shape, and the mistake that each can be given."""

from __future__ import annotations

from pathlib import Path

from audited_snippets import audited

from gradlab.audit.rules.registry import load_rules

HEAD = """\
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

model = nn.Linear(8, 4)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
CLIP, STEP = "clip_grad_norm_(model.parameters(), 1.0)", "optimizer.step()"
Shape = tuple[str, str, str, str, str]
Shapes = dict[str, Shape]
"""By name: a correct text, a part of it, what replaces the part, the code of that mistake, a part of its line."""


def found(text: str, folder: Path) -> list[tuple[str, str]]:
    """Codes and source lines of errors and warnings."""
    (folder / "a.py").write_text(text)
    codes = [c for c, rule in load_rules().items() if rule.severity != "advice"]
    return [(f.code, text.split("\n")[f.line - 1]) for f in audited(folder / "a.py", *codes)]


def assert_silent(shape: Shape, folder: Path) -> None:
    assert found(HEAD + shape[0], folder) == []


def assert_broken(shape: Shape, folder: Path, head: str = HEAD, count: int = -1) -> None:
    """With the part replaced, `count` times, that mistake is found at its line, and no other error or warning."""
    text, old, new, code, at = shape
    assert old in text
    result = found(head + text.replace(old, new, count), folder)
    assert {c for c, _ in result} == {code}
    assert any(at in line for _, line in result), result
