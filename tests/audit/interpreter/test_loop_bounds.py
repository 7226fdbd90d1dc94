"""Conditions on the index of a loop that counts."""

from pathlib import Path

import pytest
from audited_snippets import findings

SYNC = """
import torch
from contextlib import nullcontext
from torch.nn.parallel import DistributedDataParallel
def train(net, data, n):
    net = DistributedDataParallel(net)
    opt = torch.optim.SGD(net.parameters(), 0.1)
    for batch in data:
        opt.zero_grad()
        for i in range(n):
            with net.no_sync() if CONDITION else nullcontext():
                loss = net(batch[i]).mean() / n
                loss.backward()
        opt.step()
"""


@pytest.mark.parametrize("last", ["i == n - 1", "i + 1 == n", "not i < n - 1", "not (i + 1) != n"])
def test_no_sync_in_the_last_iteration(tmp_path: Path, last: str) -> None:
    assert findings(SYNC.replace("CONDITION", last), tmp_path, "GL502") == {(11, "GL502")}
    assert findings(SYNC.replace("CONDITION", f"not ({last})"), tmp_path, "GL502") == set()


@pytest.mark.parametrize("last", ["i == n", "not i != n", "i + 1 == n + 1 and i == n"])
def test_an_index_never_reaches_the_end_of_its_range(tmp_path: Path, last: str) -> None:
    assert findings(SYNC.replace("CONDITION", f"not ({last})"), tmp_path, "GL502") == {(11, "GL502")}
    assert findings(SYNC.replace("CONDITION", last), tmp_path, "GL502") == set()


STRIDED = (
    SYNC.replace("range(n)", "range(0, n, m)")
    .replace("data, n)", "data, n, m)")
    .replace("batch[i]", "batch[i : i + m]")
)


@pytest.mark.parametrize("last", ["i + m >= n", "i >= n - m", "n - m == i", "not i + m < n", "i > 0", "i != 0"])
def test_no_sync_in_the_last_iteration_of_larger_steps(tmp_path: Path, last: str) -> None:
    assert findings(STRIDED.replace("CONDITION", last), tmp_path, "GL502") == {(11, "GL502")}
    assert findings(STRIDED.replace("CONDITION", f"not ({last})"), tmp_path, "GL502") == set()


@pytest.mark.parametrize("other", ["i + 1 == n", "i + m >= k", "i + k >= n", "i == 1", "i > 1", "i >= n - 1"])
def test_another_iteration_of_larger_steps_is_not_the_last(tmp_path: Path, other: str) -> None:
    assert findings(STRIDED.replace("CONDITION", other), tmp_path, "GL502") == set()


@pytest.mark.parametrize("other", ["i == n - 2", "i == 0", "i < n", "i == m - 1"])
def test_another_iteration_is_not_the_last(tmp_path: Path, other: str) -> None:
    assert findings(SYNC.replace("CONDITION", other), tmp_path, "GL502") == set()
