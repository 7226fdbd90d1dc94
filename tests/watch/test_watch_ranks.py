"""Loops with DistributedDataParallel on two ranks."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXPECTED = {
    "right": [],
    "always": ["no-sync-missing"],
    "never": ["no-sync-on-the-last"],
    "shifted": ["no-sync-on-the-last"],
    "past_wrapper": ["raw-module-called"],
    "around_backward": ["no-sync-around-backward-only"],
}


@pytest.mark.distributed
def test_two_ranks(tmp_path):
    here = Path(__file__).parent
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    given = os.environ | {"PYTHONPATH": os.pathsep.join([str(here), str(here.parents[1])])}
    done = subprocess.run(
        [*command, str(here / "watched_ranks.py"), str(tmp_path)],
        env=given,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.strip().splitlines()[-1])
    assert found == {name: [codes, True, False, True, 4] for name, codes in EXPECTED.items()}
    assert (tmp_path / "right" / "report.html").is_file()  # of rank 0 alone
