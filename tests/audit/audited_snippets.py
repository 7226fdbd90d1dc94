"""Scripts whose comments name what the audit finds on a line: `# expect: GL101, GL307`."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from gradlab.audit.file_audit import audit
from gradlab.audit.finding import Finding
from gradlab.audit.rules.registry import load_rules
from gradlab.audit.source.files import read
from gradlab.audit.source.project import Project

HEAD = """
import torch
from torch import nn
from torch.nn import functional as F

model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = [(torch.randn(2, 8), torch.randint(4, (2,))) for _ in range(8)]
"""
STEP = "    optimizer.zero_grad()\n    loss.backward()\n    optimizer.step()\n"


def expected(text: str) -> set[tuple[int, str]]:
    """Lines and codes of the marks in a text."""
    lines = enumerate(text.split("\n"), 1)
    return {(i, code) for i, line in lines if (m := re.search(r"# expect: (.*)", line)) for code in m[1].split(", ")}


def findings(text: str, folder: Path, *codes: str) -> set[tuple[int, str]]:
    """Lines and codes of what is found with these rules, or with those that are on by default."""
    (folder / "a.py").write_text(text)
    return {(f.line, f.code) for f in audited(folder / "a.py", *codes)}


def audited(path: Path, *codes: str) -> list[Finding]:
    selected = {c: r for c, r in load_rules().items() if (c in codes if codes else r.default)}
    return audit(read(path), Project(), selected).findings


@cache
def audited_script(name: str) -> list[Finding]:
    """The findings in a script of the folders `wrong` and `right`, which is audited once for all tests."""
    return audited(Path(__file__).parent / name)


def assert_marked(text: str, folder: Path) -> None:
    """In HEAD and a text the marked lines are found, and nothing else is."""
    assert findings(HEAD + text, folder) == expected(HEAD + text)


def assert_faults(text: str, folder: Path) -> None:
    """In HEAD and a text the marked lines are found; of what is not marked, advice alone may be."""
    (folder / "a.py").write_text(HEAD + text)
    found = audited(folder / "a.py")
    marked = expected(HEAD + text)
    codes = {code for _, code in marked}
    assert {(f.line, f.code) for f in found if f.severity != "advice" or f.code in codes} == marked
