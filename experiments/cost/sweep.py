"""What a 16 x 16 map of lr and max_norm costs: Hydra's basic launcher, joblib and the vectorized one, in turn.

    python experiments/cost/sweep.py [--size 16] [--only rnn] [--rounds 3]

Every launcher is given the same command, in a process of its own, from nothing to results.csv and report.html. Seconds
are the clock's; beside them CPU seconds, which other programs disturb less. Jobs whose verdict is not the basic
launcher's are counted, and the healthy ones' final losses are compared.
"""

from __future__ import annotations

import argparse
import csv
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

os.environ["OMP_NUM_THREADS"] = "1"

LAUNCHERS = ("basic", "joblib", "vectorized")
COMMON = ["expect=any", "clip=norm", "trainer.threads=1", "trainer.updates=100", "trainer.hopeless=10"]
CASES = {
    "rnn": [
        "model=lstm", "model.cell=rnn", "model.nonlinearity=relu", "model.init=orthogonal", "model.gain=1.5",
        "model.width=32", "data=adding", "data.length=30", "optimizer=sgd", "{lr}=logspace(1e-3,1,{n})",
        "{norm}=logspace(1e-2,100,{n})",
    ],
    "lstm": [
        "model=lstm", "model.width=32", "data=adding", "data.length=30", "optimizer=sgd", "{lr}=logspace(1e-3,10,{n})",
        "{norm}=logspace(1e-2,100,{n})",
    ],
    "sigmoid_mlp": ["model=sigmoid_mlp", "{lr}=logspace(1e-4,1,{n})", "{norm}=logspace(1e-2,10,{n})"],
    "transformer": [
        "model=transformer", "model.layers=2", "model.width=32", "data.length=32", "data.batch_size=16",
        "data.samples=1600", "{lr}=logspace(1e-4,1,{n})", "{norm}=logspace(1e-2,10,{n})",
    ],
}  # fmt: skip


class Sweep(NamedTuple):
    """One sweep: seconds of the clock and of the processors, and its jobs."""

    seconds: float
    cpu: float
    rows: list[dict[str, str]]


def sweep(launcher: str, overrides: list[str], folder: Path) -> Sweep:
    command = [
        sys.executable,
        "-m",
        "gradlab",
        "-m",
        *overrides,
        f"hydra/launcher={launcher}",
        f"hydra.sweep.dir={folder}",
    ]
    if launcher == "joblib":
        command.append(f"hydra.launcher.n_jobs={len(os.sched_getaffinity(0))}")
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    seconds, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if not (folder / "results.csv").is_file():
        raise SystemExit(done.stdout[-2000:])
    with (folder / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    return Sweep(seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, rows)


def apart(a: list[dict[str, str]], b: list[dict[str, str]]) -> tuple[int, float, float]:
    """Verdicts that differ, and the median and the largest relative difference of the healthy jobs' last losses."""
    differ = sum(x["verdict"] != y["verdict"] for x, y in zip(a, b, strict=True))
    losses = [
        abs(float(x["loss/final"]) / float(y["loss/final"]) - 1)
        for x, y in zip(a, b, strict=True)
        if x["verdict"] == y["verdict"] == "healthy"
    ]
    return (differ, statistics.median(losses), max(losses)) if losses else (differ, float("nan"), float("nan"))


def spread(values: list[float]) -> str:
    low, high = min(values), max(values)
    return f"{statistics.median(values):.1f}" + (f" ({low:.1f} to {high:.1f})" if len(values) > 1 else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=16, help="points of each axis")
    parser.add_argument("--only", choices=list(CASES), action="append")
    parser.add_argument("--rounds", type=int, default=1, help="turns of all launchers")
    args = parser.parse_args()
    for name in args.only or CASES:
        fields = {"lr": "optimizer.lr", "norm": "clip.max_norm", "n": args.size}
        overrides = [*COMMON, *(part.format(**fields) for part in CASES[name])]
        made: dict[str, list[Sweep]] = {launcher: [] for launcher in LAUNCHERS}
        for turn in range(args.rounds):
            for launcher in LAUNCHERS if turn % 2 == 0 else reversed(LAUNCHERS):
                with tempfile.TemporaryDirectory() as folder:
                    made[launcher].append(sweep(launcher, overrides, Path(folder) / "sweep"))
        print(f"{name}: {args.size * args.size} jobs")
        for launcher, sweeps in made.items():
            differ, loss, most = apart(made["basic"][0].rows, sweeps[0].rows)
            seconds, cpu = spread([s.seconds for s in sweeps]), spread([s.cpu for s in sweeps])
            found = (
                f"{differ} other verdicts, losses {loss:.1e} apart, at most {most:.1e}" if launcher != "basic" else ""
            )
            print(f"  {launcher:10}  {seconds} s, CPU {cpu} s  {found}")
        fastest = [min(b.seconds, j.seconds) for b, j in zip(made["basic"], made["joblib"], strict=True)]
        ratios = [f / v.seconds for f, v in zip(fastest, made["vectorized"], strict=True)]
        print(f"  the faster of the two / vectorized: {spread(ratios)}", flush=True)


if __name__ == "__main__":
    main()
