"""What is typed: run, or refused in one or two lines. Seeded; `experiments/faults/run.py --fuzz N` makes more of it."""

import os

import fuzz
import pytest

SEED, CASES = map(int, os.environ.get("GRADLAB_FUZZ", "0:40").split(":"))


@pytest.mark.slow
def test_every_command_is_run_or_refused_in_a_line() -> None:
    counts, faults = fuzz.fuzz(SEED, CASES)
    print(dict(counts))
    assert not faults, f"{len(faults)} of {CASES}\n" + "\n".join(faults[:5])
    assert counts["accepted"] and counts["refused"]
