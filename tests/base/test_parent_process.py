"""Ranks and workers end when what started them is killed."""

import os
import select
import subprocess
import sys

import pytest

IMPORTED = "import os, time, gradlab, sys; before = os.getppid(); print(1, flush=True)\n"
WAITS = "while os.getppid() == before: time.sleep(0.02)\n"
LATE = f"{IMPORTED}{WAITS}sys.modules['gradlab.base.parent_process'].end_with_parent()"
IDLE = """
import time
from joblib import Parallel, delayed
from gradlab.sweep.launchers.processes import followed
followed()
Parallel(n_jobs=2, backend="loky")(delayed(abs)(i) for i in range(2))
print(1, flush=True)
time.sleep(60)
"""
CHILD = "import time, gradlab.base.parent_process as p; p.end_with_parent(); print(1, flush=True); time.sleep(60)"


@pytest.mark.parametrize("child", [CHILD, f"{LATE}; time.sleep(60)"], ids=["it asked", "it had only begun"])
def test_a_process_ends_with_the_one_that_started_it(child: str) -> None:
    ends(f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {child!r}]); time.sleep(60)")


def test_workers_of_joblib_that_have_no_job_end_with_their_parent() -> None:
    ends(IDLE)


def ends(code: str) -> None:
    """The processes that this one starts end once it is killed, which is when it has said 1."""
    agent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert agent.stdout is not None and agent.stdout.readline() == b"1\n"
    agent.kill()
    agent.wait()
    ended = select.select([agent.stdout], [], [], 10)[0]  # its child holds the pipe's other end until it ends
    assert ended and os.read(agent.stdout.fileno(), 1) == b""
    agent.stdout.close()


def test_a_process_whose_parent_was_killed_before_ends_at_once() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    code = f"import time, gradlab.base.parent_process as p; p.end_with_parent({gone.pid}); time.sleep(60)"
    assert subprocess.run([sys.executable, "-c", code], timeout=30).returncode == 1
