"""kill -9 at random moments, seeded, and resuming: what is left at the end is what a run left alone leaves."""

from __future__ import annotations

import csv
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

TESTS = Path(__file__).parents[1]
QUIET = ("expect=any", "trainer.progress=none", "trainer.threads=1")
RUN = (
    *("trainer.epochs=40", "data.samples=64", "model.layers=2", "model.width=8", "data.batch_size=8", *QUIET),
    *("trainer.checkpoint_every=7", "schedule=warmup", "noise=gaussian"),
)
SWEEP = ("trainer.epochs=30", "data.samples=64", "model.layers=2", "model.width=8", "data.batch_size=8", *QUIET)
FP16 = ("precision=fp16", "precision.growth_interval=5", f"precision.init_scale={2.0**24}", "clip=autoclip")
STREAM = ("model=custom", "model.target=streams:Net", "data=custom", "data.target=streams:augmented", "data.workers=2")


@dataclass
class Kind:
    """What is killed."""

    arguments: tuple[str, ...]
    sweep: bool = False
    module: tuple[str, ...] = ("gradlab",)
    exact: bool = True
    """Bit by bit; what is left of a program of lanes is another program, and rounds otherwise."""

    def command(self, arguments: tuple[str, ...]) -> list[str]:
        if self.module[0] == "torchrun":
            ranks = [
                sys.executable,
                "-m",
                "torch.distributed.run",
                "--standalone",
                "--nproc-per-node=2",
                "-m",
                "gradlab",
            ]
            return [*ranks, *arguments]
        return [sys.executable, "-m", self.module[0], *arguments]

    def first(self, folder: str) -> tuple[str, ...]:
        return (*self.arguments, f"hydra.{'sweep' if self.sweep else 'run'}.dir={folder}")

    def again(self, folder: str) -> tuple[str, ...]:
        return (f"resume={folder}",)


SEEDS = ("-m", "seed=0,1,2,3")
KINDS = {
    "plain": Kind(RUN),
    "fp16 with skips": Kind((*RUN, *FP16)),
    "W&B and TensorBoard": Kind((*RUN, "logger=[wandb,tensorboard]")),
    "loader with workers": Kind(
        (*STREAM, "data.batch_size=4", "trainer.epochs=20", "trainer.checkpoint_every=7", *QUIET)
    ),
    "FSDP": Kind((*RUN, "trainer.parallel=fsdp"), module=("torchrun",)),
    "vectorized": Kind((*SEEDS, *SWEEP, "hydra/launcher=vectorized", "hydra.launcher.workers=2"), True, exact=False),
}


def start(command: list[str], cwd: Path) -> subprocess.Popen[bytes]:
    path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = os.environ | {"PYTHONPATH": path, "WANDB_MODE": "offline", "OMP_NUM_THREADS": "1"}
    env["XDG_STATE_HOME"] = str(cwd / "state")
    with (cwd / "said").open("wb") as said:  # a pipe would wait for idle workers of joblib, which end after minutes
        return subprocess.Popen(
            command, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=said
        )


def told(folder: Path) -> str:
    return (folder / "said").read_text(errors="replace")[-1500:]


def left(kind: Kind, folder: Path) -> dict[str, Any]:
    """What counts of what is left: weights, lines and verdicts."""
    jobs = [path.parent for path in sorted(folder.glob("*/.hydra"))] if kind.sweep else [folder]
    found: dict[str, Any] = {}
    for job in jobs:
        checkpoint = job / "checkpoint.pt"
        weights: Any = torch.load(checkpoint, weights_only=True)["model"] if checkpoint.is_file() else {}
        diagnosis = json.loads((job / "diagnosis.json").read_text())
        lines = (job / "metrics.jsonl").read_text().splitlines()
        typed = sorted(diagnosis["overrides"])
        found[str(typed)] = (weights, len(lines), diagnosis["verdict"], json.loads(lines[-1]).get("train/loss"))
    if kind.sweep:
        rows = list(csv.DictReader((folder / "results.csv").read_text().splitlines(True)))
        found["rows"] = len(rows)
    return found


def differences(kind: Kind, one: dict[str, Any], other: dict[str, Any]) -> str:
    """Where two ends differ; empty where they do not."""
    if one.keys() != other.keys():
        return f"other jobs: {sorted(one.keys() ^ other.keys())[:3]}"
    for name, value in one.items():
        if name == "rows" or value is None:
            if value != other[name]:
                return f"{name}: {value} and {other[name]}"
            continue
        weights, lines, verdict, loss = value
        there, length, word, last = other[name]
        if weights.keys() != there.keys() or not all(alike(kind, w, there[key]) for key, w in weights.items()):
            return f"{name}: the weights differ"
        if (verdict, lines) != (word, length):
            return f"{name}: {lines} lines, {verdict}, and {length}, {word}"
        if kind.exact and loss != last:
            return f"{name}: the losses {loss} and {last}"
    return ""


def alike(kind: Kind, one: Any, other: Any) -> bool:
    if not isinstance(one, torch.Tensor):
        return True
    return torch.equal(one, other) or (
        not kind.exact and torch.allclose(one, other, rtol=1e-3, atol=1e-4, equal_nan=True)
    )


def kills(
    seed: int, number: int, folder: Path, kinds: tuple[str, ...] = tuple(KINDS)
) -> tuple[Counter[str], list[str]]:
    """How often each kind was killed, and how often what was left differed or a resumption failed."""
    counts, faults = Counter[str](), list[str]()
    for i, name in enumerate(kinds):
        of_it = number // len(kinds) + (i < number % len(kinds))
        if of_it:
            kill(KINDS[name], name, random.Random(f"{seed} {name}"), of_it, folder / str(i), counts, faults)
    return counts, faults


def kill(
    kind: Kind, name: str, draw: random.Random, number: int, folder: Path, counts: Counter[str], faults: list[str]
) -> None:
    folder.mkdir()
    whole = start(kind.command(kind.first("whole")), folder)
    began = time.monotonic()
    if whole.wait(timeout=300):
        faults.append(f"{name}, left alone: {whole.returncode} {told(folder)}")
        return
    seconds, expected = time.monotonic() - began, left(kind, folder / "whole")
    killed, case = 0, 0
    while killed < number:
        run, case = f"run{case}", case + 1
        for attempt in range(6):
            begun = (folder / run / ("multirun.yaml" if kind.sweep else ".hydra/overrides.yaml")).is_file()
            process = start(kind.command(kind.again(run) if begun else kind.first(run)), folder)
            try:  # the last attempt is left alone
                process.wait(timeout=300 if attempt == 5 else draw.uniform(0.4, 1.0) * seconds)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                process.wait()
                if attempt == 5:
                    faults.append(f"{name}, {run}: hangs")
                    return
                killed += 1
                checkpoint = any((folder / run).rglob("checkpoint.pt")) or any((folder / run).rglob("diagnosis.json"))
                counts[f"{name}, {'after a checkpoint' if checkpoint else 'before one'}"] += 1
                continue
            if process.returncode or "Traceback" in told(folder):
                faults.append(f"{name}, {run}: {process.returncode} {told(folder)}")
            else:
                counts[f"{name}, ended"] += 1
                try:
                    if found := differences(kind, expected, left(kind, folder / run)):
                        faults.append(f"{name}, {run}: {found}")
                except (OSError, ValueError) as error:
                    faults.append(f"{name}, {run}: {error!r}")
            break
        shutil.rmtree(folder / run, ignore_errors=True)
        if len(faults) > 20:
            return
