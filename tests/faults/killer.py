"""kill -9 at random moments, seeded, and resuming: what is left at the end is what a run left alone leaves."""

from __future__ import annotations

import csv
import json
import random
import shutil
import signal
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from forked import Commands, Started

QUIET = ("expect=any", "trainer.progress=none", "trainer.threads=1")
RUN = (
    *("trainer.epochs=12", "data.samples=64", "model.layers=2", "model.width=8", "data.batch_size=8", *QUIET),
    *("trainer.checkpoint_every=7", "schedule=warmup", "noise=gaussian"),
)
QUADTREE = (
    *("-m", "hydra/sweeper=quadtree", "hydra.sweeper.coarse=1", "hydra.sweeper.resolution=4", "hydra.sweeper.checks=1"),
    *("hydra.sweeper.x=optimizer.lr:1e-3:1e3", "hydra.sweeper.y=clip.max_norm:1e-2:1e2", "optimizer=sgd", "clip=norm"),
)
SWEEP = ("trainer.epochs=10", "data.samples=64", "model.layers=2", "model.width=8", "data.batch_size=8", *QUIET)
FP16 = ("precision=fp16", "precision.growth_interval=5", f"precision.init_scale={2.0**24}", "clip=autoclip")
STREAM = ("model=custom", "model.target=streams:Net", "data=custom", "data.target=streams:augmented", "data.workers=2")


@dataclass
class Kind:
    """What is killed."""

    arguments: tuple[str, ...]
    sweep: bool = False
    ranks: int = 1
    exact: bool = True
    """Bit by bit; what is left of a program of lanes is another program, and rounds otherwise."""

    def first(self, folder: str) -> tuple[str, ...]:
        return (*self.arguments, f"hydra.{'sweep' if self.sweep else 'run'}.dir={folder}")

    def start(self, commands: Commands, arguments: tuple[str, ...], cwd: Path) -> list[Started]:
        whole = ("-m", "gradlab", *arguments)
        if self.ranks > 1:
            return commands.ranks(self.ranks, *whole, cwd=cwd, timeout=300, WANDB_MODE="offline")
        return [commands.python(*whole, cwd=cwd, timeout=300, WANDB_MODE="offline")]


SEEDS = ("-m", "seed=0,1,2,3")
KINDS = {
    "plain": Kind(RUN),
    "fp16 with skips": Kind((*RUN, *FP16)),
    "W&B and TensorBoard": Kind((*RUN, "logger=[wandb,tensorboard]")),
    "loader with workers": Kind(
        (*STREAM, "data.batch_size=4", "trainer.epochs=6", "trainer.checkpoint_every=7", *QUIET)
    ),
    "FSDP": Kind((*RUN, "trainer.parallel=fsdp"), ranks=2),
    "vectorized": Kind((*SEEDS, *SWEEP, "hydra/launcher=vectorized", "hydra.launcher.workers=2"), True, exact=False),
    "joblib": Kind((*SEEDS, *SWEEP, "hydra/launcher=joblib", "hydra.launcher.n_jobs=2"), True),
    "quadtree": Kind((*SWEEP, *QUADTREE), True),
}


def ended(processes: list[Started], seconds: float) -> int | None:
    """The exit code, once all have ended or one has failed; None where they are still at work after so long."""
    end = time.monotonic() + seconds
    while any(one.poll(0.02) is None for one in processes):
        if any(one.returncode for one in processes):  # as torchrun does
            for one in processes:
                one.terminate()
        if time.monotonic() > end:
            return None
    return max(abs(one.wait()) for one in processes)


def told(processes: list[Started]) -> str:
    return "".join(one.err.read_text(errors="replace")[-1500:] for one in processes)


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
        if (folder / "cells.json").is_file():
            found["map"] = json.loads((folder / "cells.json").read_text())["maps"]
    return found


def differences(kind: Kind, one: dict[str, Any], other: dict[str, Any]) -> str:
    """Where two ends differ; empty where they do not."""
    if one.keys() != other.keys():
        return f"other jobs: {sorted(one.keys() ^ other.keys())[:3]}"
    for name, value in one.items():
        if name in ("rows", "map"):
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
    seed: int, number: int, folder: Path, kinds: tuple[str, ...] = tuple(KINDS), commands: Commands | None = None
) -> tuple[Counter[str], list[str]]:
    """How often each kind was killed, and how often what was left differed or a resumption failed."""
    counts, faults = Counter[str](), list[str]()
    forks = commands or Commands(folder)
    for i, name in enumerate(kinds):
        of_it = number // len(kinds) + (i < number % len(kinds))
        if of_it:
            kill(forks, name, random.Random(f"{seed} {name}"), of_it, folder / str(i), counts, faults)
    if commands is None:
        forks.close()
    return counts, faults


def kill(
    forks: Commands, name: str, draw: random.Random, number: int, folder: Path, counts: Counter[str], faults: list[str]
) -> None:
    folder.mkdir()
    forks.python("-c", "", cwd=folder).wait()  # the server has imported all by then, which is not of the run's time
    kind, began = KINDS[name], time.monotonic()
    whole = kind.start(forks, kind.first("whole"), folder)
    if code := ended(whole, 300):
        faults.append(f"{name}, left alone: {code} {told(whole)}")
        return
    seconds, expected = time.monotonic() - began, left(kind, folder / "whole")
    killed, case = 0, 0
    while killed < number:
        run, case = f"run{case}", case + 1
        for attempt in range(6):
            begun = (folder / run / ("multirun.yaml" if kind.sweep else ".hydra/overrides.yaml")).is_file()
            processes = kind.start(forks, (f"resume={run}",) if begun else kind.first(run), folder)
            alone = attempt == 5 or killed == number
            code = ended(processes, 300 if alone else draw.uniform(0.05, 1.0) * seconds)
            if code is None:
                for one in processes if draw.random() < 0.5 else [draw.choice(processes)]:
                    one.send_signal(signal.SIGKILL)
                code = ended(processes, 60)
                if alone or code is None:
                    faults.append(f"{name}, {run}: hangs, {'alone' if alone else 'where another rank was killed'}")
                    return
                killed += 1
                checkpoint = any((folder / run).rglob("checkpoint.pt")) or any((folder / run).rglob("diagnosis.json"))
                counts[f"{name}, {'after a checkpoint' if checkpoint else 'before one'}"] += 1
                continue
            if code or "Traceback" in told(processes):
                faults.append(f"{name}, {run}: {code} {told(processes)}")
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
