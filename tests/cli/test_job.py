"""One job's end."""

import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hydra.types import RunMode
from omegaconf import OmegaConf

from gradlab.cli import job
from gradlab.sweep.launchers import processes


def test_a_report_is_not_cut_short_by_a_worker_that_dies_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pipe is closed, and the job fails, before it is gone; PyTorch's handler of the signal then raises."""

    def dies(*_: Any) -> int:
        os.kill(os.getpid(), signal.SIGCHLD)
        return 7

    def raises(*_: Any) -> None:
        raise RuntimeError("DataLoader worker (pid 1) exited unexpectedly")

    hydra = {"runtime": {"output_dir": str(tmp_path)}, "overrides": {"task": []}, "mode": RunMode.RUN}
    monkeypatch.setattr(job, "HydraConfig", SimpleNamespace(get=lambda: OmegaConf.create(hydra)))
    monkeypatch.setattr(processes, "enter", lambda: None)
    monkeypatch.setattr(job, "failed", dies)
    before = signal.signal(signal.SIGCHLD, raises)
    try:
        assert job.run_job(OmegaConf.create()) == 7
        with pytest.raises(RuntimeError, match="exited unexpectedly"):
            dies()
    finally:
        signal.signal(signal.SIGCHLD, before)
