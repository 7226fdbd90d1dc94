"""Loops with DistributedDataParallel on two ranks."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXPECTED = {
    "right": [],
    "always": ["sync_every_micro_batch"],
    "never": ["no_sync_off_by_one"],
    "shifted": ["no_sync_off_by_one"],
    "past_wrapper": ["raw_module"],
    "around_backward": ["no_sync_around_backward_only"],
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
