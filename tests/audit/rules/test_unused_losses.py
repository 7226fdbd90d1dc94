"""Losses that are computed, and are no part of what goes backward."""

from __future__ import annotations

import pytest
from audited_snippets import assert_faults

TERMS = """
def fit(weight, writer):
    for x, y in loader:
        out = model(x)
        first_loss = F.cross_entropy(out, y)
        second_loss = {second}
        total = {total}
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
        {log}
"""
SECOND = "F.mse_loss(out, x[:, :4])"
LOGGED = "writer.add_scalar('second', second_loss.item())"
BOTH, ONE = "first_loss + second_loss", "first_loss  # expect: GL717"
RETURNED = """
def terms_of(out, x, y):
    return {{"first_loss": F.cross_entropy(out, y), "second_loss": F.mse_loss(out, x[:, :4]), "third_loss": out.abs().mean()}}
for x, y in loader:
    terms = terms_of(model(x), x, y)
    loss = {total}
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    {log}
"""
TWO = 'terms["first_loss"] + terms["second_loss"]'
CASES = {
    "nothing reads a term": TERMS.format(second=SECOND, total=ONE, log="pass"),
    "each term is added": TERMS.format(second=SECOND, total=BOTH, log=LOGGED),
    "a term is logged with its weight": TERMS.format(second=f"weight * {SECOND}", total=ONE, log=LOGGED),
    "a metric is logged": TERMS.format(second=SECOND, total="first_loss", log=LOGGED),
    "a term is weighted, logged and added": TERMS.format(second=f"weight * {SECOND}", total=BOTH, log=LOGGED),
    "a loss function is made": TERMS.format(second="nn.MSELoss(reduction='sum')", total="first_loss", log="pass"),
    "a term of a dictionary": RETURNED.format(total=f"{TWO}  # expect: GL717", log=""),
    "all terms of a dictionary": RETURNED.format(total=f"{TWO} + terms['third_loss']", log=""),
    "a dictionary that is logged": RETURNED.format(total=TWO, log="print(terms)"),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_computed_for_the_loss_is_a_part_of_it(name, tmp_path):
    assert_faults(CASES[name], tmp_path)
