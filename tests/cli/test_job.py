"""One job's end."""

import os
import signal
from typing import Any

import pytest

from gradlab.cli import job


def test_a_report_is_not_cut_short_by_a_worker_that_dies_meanwhile() -> None:
    """Its pipe is closed, and the job fails, before it is gone; PyTorch's handler of the signal then raises."""

    def raises(*_: Any) -> None:
        raise RuntimeError("DataLoader worker (pid 1) exited unexpectedly")

    before = signal.signal(signal.SIGCHLD, raises)
    try:
        with job.no_signals_of_children():
            os.kill(os.getpid(), signal.SIGCHLD)
        with pytest.raises(RuntimeError, match="exited unexpectedly"):
            os.kill(os.getpid(), signal.SIGCHLD)
    finally:
        signal.signal(signal.SIGCHLD, before)
