"""A rank is killed under `torchrun --max-restarts`: the run goes on by itself, and ends as if nothing had been."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from forked import Commands
from helpers import differences, load, metrics

RUN = [
    *("-m", "gradlab", "model=sigmoid_mlp", "optimizer=sgd", "optimizer.lr=0.1", "trainer.epochs=15", "expect=any"),
    *("trainer.checkpoint_every=20", "trainer.progress=none", "monitor=none"),
]
AGENT = ["--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d", "--local-addr=127.0.0.1"]
"""Of one of two hosts: the other one's rank is ended too, as on one host."""


def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def rank_1(parents: set[int]) -> int:
    """The process of rank 1 among the children of torchrun's agents."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                if parent in parents and b"\0RANK=1\0" in b"\0" + (entry / "environ").read_bytes():
                    return int(entry.name)
            except (OSError, ValueError):
                continue
    raise AssertionError("no rank 1")


def ended(here: Path, folder: str) -> str:
    """Run on two hosts, and kill rank 1 once there are checkpoints; it ends well. Returns what was said."""
    started, where = [], [f"--rdzv-endpoint=127.0.0.1:{port()}", "--rdzv-id=run", "--max-restarts=2"]
    for number in range(2):
        command = [sys.executable, "-m", "torch.distributed.run", *AGENT, *where, *RUN, f"hydra.run.dir={folder}"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with (here / f"{folder}_{number}.txt").open("w") as said:
            started.append(subprocess.Popen(command, cwd=here, stdout=said, stderr=said, env=environment))
    try:
        until = time.monotonic() + 120
        while True:
            file = here / folder / "metrics.jsonl"
            if (here / folder / "checkpoint.pt").is_file() and file.read_bytes().count(b"\n") > 60:
                os.kill(rank_1({agent.pid for agent in started}), signal.SIGKILL)
                break
            assert time.monotonic() < until and started[0].poll() is None
            time.sleep(0.05)
        codes = [agent.wait(timeout=200) for agent in started]
    finally:
        for agent in started:
            agent.terminate()
    text = "".join((here / f"{folder}_{number}.txt").read_text() for number in range(2))
    assert codes == [0, 0], text
    return text


@pytest.mark.slow
def test_a_run_whose_rank_is_killed_goes_on_and_ends_as_the_undisturbed_one(gradlab: Commands, tmp_path: Path) -> None:
    undisturbed = gradlab.torchrun(2, *RUN, "hydra.run.dir=whole", cwd=tmp_path)
    assert undisturbed.code == 0, undisturbed.err
    whole = load(tmp_path / "whole")
    said = ended(tmp_path, "killed")
    assert said.count("torchrun has started the ranks again") == 1
    assert not differences(load(tmp_path / "killed")["model"], whole["model"])
    assert not differences(metrics(tmp_path / "killed"), metrics(tmp_path / "whole"))
