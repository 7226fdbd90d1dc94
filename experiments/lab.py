"""What every study shares: its commands, its claims, and how runs decide them.

A study is `experiments/<name>/study.py` with a `STUDY`. `python experiments/reproduce.py <name>` runs it.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runs import Run, Runs

HERE = Path(__file__).parent
FOLDER = Path("outputs", "reproduce")
"""Where the runs go, under the working directory."""
VERDICTS = ("confirmed", "refuted", "depends")


Measured = tuple[str, str]
"""confirmed, refuted or depends; and the numbers that say so."""


@dataclass
class Claim:
    """One claim of the sources, and how runs decide it."""

    text: str
    source: str
    """Heading in the sources."""
    measure: Callable[[Runs], Measured]


@dataclass
class Sweep:
    """One command; its runs are kept under its name."""

    name: str
    arguments: list[str]
    ranks: int = 1
    """Processes, of torchrun."""

    @property
    def command(self) -> str:
        start = ["python"] if self.ranks == 1 else ["torchrun", "--standalone", f"--nproc-per-node={self.ranks}"]
        return shlex.join([*start, "-m", "gradlab", *self.arguments])


@dataclass
class Study:
    """What is shown, by which commands, and which claims it decides."""

    title: str
    about: str
    sweeps: list[Sweep]
    claims: list[Claim] = field(default_factory=list)
    conclusion: str = ""
    by: Sequence[str] = ("remedy",)
    """Overrides that name a row of the table and a curve of the figure."""
    figure: tuple[str, ...] = ("train/loss", "grad/norm")
    shown: tuple[str, ...] = ()
    """Names of the sweeps that the figure shows; none: the first."""
    tried: str = ""
    own: Callable[[Runs, Path], list[str]] | None = None
    """What the page shows instead of the table and the curves, which it may write into the study's folder."""


def check(condition: bool, text: str) -> Measured:
    """A claim that a measurement confirms or refutes."""
    return ("confirmed" if condition else "refuted"), text


def depends(conditions: Sequence[bool], text: str) -> Measured:
    """A claim that holds in all, none or some of the cases measured."""
    return ("confirmed" if all(conditions) else "depends" if any(conditions) else "refuted"), text


def cured(remedy: str, sweep: str | None = None, verdicts: Sequence[str] = ("healthy", "small_but_healthy")) -> Any:
    """A claim that a remedy cures: every seed is healthy with it."""

    def measure(runs: Runs) -> Measured:
        chosen = runs.where(sweep, remedy=remedy)
        return check(bool(chosen) and all(r.verdict in verdicts for r in chosen), f"{remedy}: {chosen.summary}")

    return measure


def not_cured(remedy: str, sweep: str | None = None) -> Any:
    """A claim that it does not: no seed is healthy with it."""

    def measure(runs: Runs) -> Measured:
        chosen = runs.where(sweep, remedy=remedy)
        return check(bool(chosen) and all(r.verdict != "healthy" for r in chosen), f"{remedy}: {chosen.summary}")

    return measure


def run(name: str, study: Study, fresh: bool = True) -> Runs:
    """Run a study's commands, or read the runs that are there; raises where a job gave no verdict."""
    for sweep in study.sweeps:
        folder = FOLDER / name / sweep.name
        if fresh or not folder.is_dir():
            shutil.rmtree(folder, ignore_errors=True)
            where = [f"hydra.sweep.dir={folder}"] if "-m" in sweep.arguments else [f"hydra.run.dir={folder}"]
            many = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={sweep.ranks}"]
            command = [sys.executable, *many * (sweep.ranks > 1), "-m", "gradlab", *sweep.arguments, *where]
            print(f"$ {sweep.command}", flush=True)
            environment = os.environ | {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
            subprocess.run(command, check=False, env=environment)
    runs = Runs(found(name, study))
    missing = [str(r.folder) for r in runs if not (r.folder / "diagnosis.json").is_file()]
    if missing or not runs:
        raise SystemExit(f"no verdict in {', '.join(missing) or FOLDER / name}")
    return runs


def found(name: str, study: Study) -> Iterator[Run]:
    for sweep in study.sweeps:
        files = (FOLDER / name / sweep.name).rglob(".hydra/overrides.yaml")
        for file in sorted(files, key=lambda f: (len(str(f)), f)):  # 10 comes after 9
            yield Run(file.parent.parent, sweep.name)


def judged(study: Study, runs: Runs) -> list[dict[str, str]]:
    """The claims with what was measured."""
    rows = []
    for claim in study.claims:
        verdict, text = claim.measure(runs)
        if verdict not in VERDICTS:
            raise ValueError(f"{claim.text}: {verdict}")
        rows.append({"claim": claim.text, "source": claim.source, "verdict": verdict, "measured": text})
    return rows
