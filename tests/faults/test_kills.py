"""kill -9 at random moments; `experiments/faults/run.py --kills N` makes more of it."""

from pathlib import Path

import killer
import pytest


@pytest.mark.slow
def test_a_run_that_is_killed_and_resumed_ends_with_the_same_weights(tmp_path: Path) -> None:
    counts, faults = killer.kills(0, 3, tmp_path)
    print(dict(counts))
    assert not faults and counts["kills"] >= 3 and counts["runs"], faults
