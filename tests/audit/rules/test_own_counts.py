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
