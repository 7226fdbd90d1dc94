"""What several test files share: a run from its overrides, here or under torchrun, and what it left behind."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import DictConfig, OmegaConf

from gradlab.base.distributed import World
from gradlab.base.json_lines import read_lines
from gradlab.config.compose import compose
from gradlab.config.schema import to_config
from gradlab.train.sink import FileSink, Sink
from gradlab.train.trainer import Trainer

HERE = Path(__file__).parent
MEASURED = {"throughput/samples_per_second", "memory/peak_bytes", "time/forward", "time/backward"}
"""Metrics that are of the machine and not of the run."""


def sampled(cases: Iterable[Any], every: int) -> list[Any]:
    """Parameters of which the default tests run one in so many; the others are marked slow."""
    return [case if i % every == 0 else pytest.param(case, marks=pytest.mark.slow) for i, case in enumerate(cases)]


@cache
def composed(*overrides: str) -> DictConfig:
    return compose(["trainer.progress=none", *overrides])


def trainer(
    folder: Path, *overrides: str, world: World | None = None, sinks: tuple[Sink, ...] = (), cls: type = Trainer
) -> Trainer:
    cfg = composed(*overrides)
    plain: Any = OmegaConf.to_container(cfg, resolve=True)
    return cls(
        to_config(cfg), folder, world or World(), (FileSink(), *sinks), plain_config=plain, say=lambda text: None
    )


def resumed(folder: Path, *overrides: str, **changes: Any) -> Any:
    """The trainer that continues the run in a folder. changes: of its configuration."""
    run = trainer(folder, *overrides)
    run.config = replace(run.config, resume=str(folder), **changes)
    return run


def metrics(folder: Path) -> list[dict[str, Any]]:
    """Every line of metrics.jsonl, without what the machine decides."""
    return [{k: v for k, v in line.items() if k not in MEASURED} for line in read_lines(folder / "metrics.jsonl")]


def updates(folder: Path) -> list[dict[str, Any]]:
    """The lines of updates, without those of evaluations."""
    return [line for line in metrics(folder) if "train/loss" in line]


def losses(folder: Path) -> list[float]:
    return [line["train/loss"] for line in updates(folder)]


def weights(module: torch.nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten().clone() for p in module.parameters()])


def load(folder: Path) -> dict[str, Any]:
    return torch.load(folder / "checkpoint.pt", weights_only=True)


def differences(a: Any, b: Any, path: str = "") -> list[str]:
    """Paths of whatever is not bitwise the same in two nested structures; NaN equals NaN."""
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        same = a.dtype == b.dtype and a.shape == b.shape and torch.equal(a.nan_to_num(7), b.nan_to_num(7))
        return [] if same else [path]
    if isinstance(a, dict) and isinstance(b, dict):
        return [d for k in a.keys() | b.keys() for d in differences(a.get(k), b.get(k), f"{path}/{k}")]
    if isinstance(a, list | tuple) and isinstance(b, list | tuple) and len(a) == len(b):
        return [d for i, (x, y) in enumerate(zip(a, b, strict=True)) for d in differences(x, y, f"{path}/{i}")]
    return [] if a == b or (a != a and b != b) else [path]


def of_the_run(state: dict[str, Any]) -> dict[str, Any]:
    """A checkpoint without what the machine decides: sizes of files, memory, and where it was resumed from."""
    evals = [{k: v for k, v in e.items() if k not in MEASURED} for e in state["counts"]["eval"]]
    rest = {k: v for k, v in state.items() if k not in ("files", "config", "counts")}
    return rest | {"counts": state["counts"] | {"eval": evals}}


def environment() -> dict[str, str]:
    path = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
    return os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


def torchrun(ranks: int, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", *arguments]


def run(command: list[str], folder: Path, timeout: float = 200) -> subprocess.CompletedProcess[str]:
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, cwd=folder, env=environment(), stdout=pipe, stderr=pipe, text=True)
    try:
        said, errors = process.communicate(timeout=timeout)
    except BaseException:
        process.terminate()  # torchrun then ends its ranks, which a kill would leave hanging
        process.communicate(timeout=60)
        raise
    return subprocess.CompletedProcess(command, process.returncode, said, errors)


def start(command: list[str], folder: Path) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=folder, env=environment(), stdout=pipe, stderr=subprocess.STDOUT, text=True)


def children(process: int) -> list[int]:
    """The processes that a process has started."""
    return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def gone(processes: Iterable[int], seconds: float = 20) -> bool:
    """Whether all of them have ended, or do so in time."""
    processes, end = list(processes), time.monotonic() + seconds
    while any(map(alive, processes)) and time.monotonic() < end:
        time.sleep(0.05)
    return not any(map(alive, processes))


def wait_for(condition: Callable[[], Any], process: subprocess.Popen[str], timeout: float = 120) -> None:
    """Poll until the condition holds; fail if the process ends first."""
    end = time.monotonic() + timeout
    while not condition():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < end, "timed out"
        time.sleep(0.01)
