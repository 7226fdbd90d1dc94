"""kill -9 at random moments; `experiments/faults/run.py --kills N` makes more of it."""

from pathlib import Path

import killer
import pytest
from forked import Commands


@pytest.mark.slow
@pytest.mark.parametrize("kind", killer.KINDS)
def test_what_is_killed_and_resumed_ends_as_if_it_had_not_been(gradlab: Commands, tmp_path: Path, kind: str) -> None:
    if kind == "joblib":
        pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    counts, faults = killer.kills(0, 1, tmp_path, (kind,), gradlab)
    print(dict(counts))
    assert not faults and sum(counts.values()) > counts[f"{kind}, ended"] > 0, faults
