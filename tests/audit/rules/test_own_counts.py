"""Means of the micro-batches of a list, which their loss function counts."""

from __future__ import annotations

import pytest
from audited_snippets import findings

TEXT = """
class Trainer:
    def accumulate(self, batches, normalization):
        for k, batch in enumerate(batches):
            out = self.model(batch["src"], batch["tgt"])
            loss, stats = self.loss(batch, out)
            if loss is not None:
                {divided}
                self.optim.backward(loss)
            self.stats.update(stats)
        self.optim.step()
"""


@pytest.mark.parametrize(
    ("divided", "found"),
    [
        ("loss = loss / stats.n_words / len(batches)", {(8, "GL805")}),
        ("loss = loss / (len(batches) * stats.num_tokens)", {(8, "GL805")}),
        ("loss = loss / normalization", set()),
        ("loss = loss / stats.n_words", set()),
        ("loss = loss / normalization.n_words / len(batches)", set()),
        ("loss = loss * stats.n_words / len(batches)", set()),
        ("mean = loss / stats.n_words / len(batches)", set()),
    ],
)
def test_a_mean_of_means_of_a_list(divided, found, tmp_path):
    assert findings(TEXT.replace("{divided}", divided), tmp_path, "GL805") == found


MASKED = """
class Trainer:
    def masked(self, batch):
        mask = batch["mask"].float()
        each = torch.nn.functional.cross_entropy(self.model(batch["x"]), batch["y"].flatten(), reduction="none")
        return (each * mask.flatten()).sum(), mask.sum()
    def step(self, batches, total):
        self.optimizer.zero_grad()
        for batch in batches:
            loss, n = self.masked(batch)
            loss = loss / {divisor}
            loss.backward()
        self.optimizer.step()
"""


@pytest.mark.parametrize(("divisor", "found"), [("n / len(batches)", {(13, "GL805")}), ("n", set()), ("total", set())])
def test_a_mask_that_a_method_returns(divisor, found, tmp_path):
    assert findings("import torch\n" + MASKED.replace("{divisor}", divisor), tmp_path, "GL805") == found
