"""Losses of a micro-batch that are divided by the number of their own terms, and by the window or not."""

from __future__ import annotations

import pytest
from audited_snippets import HEAD, expected, findings

LOOP = """
def fit(net, opt, batches, n, part):
    for i, batch in enumerate(batches):
        mask = batch["mask"]
        each = F.cross_entropy(net(batch["x"]), batch["y"], reduction="none")
        loss = (each * mask).sum() / {by}
        {backward}.backward(){mark}
        if (i + 1) % n == 0 or i + 1 == len(batches):
            opt.step()
            opt.zero_grad()
"""


@pytest.mark.parametrize(
    ("by", "backward", "wrong"),
    [
        ("mask.sum()", "loss", True),
        ("mask.sum()", "(loss / n)", False),
        ("mask.sum()", "(loss * part)", False),
        ("part", "loss", False),
        ("part.sum()", "loss", False),
        ("(mask.sum() * n)", "loss", False),
    ],
)
def test_a_mean_over_a_mask_is_a_mean(by, backward, wrong, tmp_path):
    text = HEAD + LOOP.format(by=by, backward=backward, mark="  # expect: GL301" * wrong)
    assert findings(text, tmp_path, "GL301") == expected(text)
