"""The runs and sweeps below a folder, each from its own files alone: how it ended, and its key numbers."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from gradlab.base.json_lines import number
from gradlab.base.lock import locked
from gradlab.runs.files import choices_of, fields_of, overrides_of, refused, swept, told_by, value
from gradlab.runs.measured import evaluated, measured

STATES = ("running", "killed", "error", "does not apply", "broken", "pretrained")
"""What stands for the verdict of a run that has none. killed: it left no diagnosis.json and nobody is at it. broken:
what it left cannot be read. pretrained: weights that other runs begin with."""
WRITTEN = ("diagnosis.json", "metrics.jsonl", ".hydra", "config.yaml")
"""What tells when a run was last at work, the first that is there."""


@dataclass
class Run:
    """A run, a job of a sweep, or a sweep with its jobs."""

    path: Path
    name: str
    """Its folder, relative to the one that was searched."""
    kind: str = "run"
    """run, job or sweep."""
    time: float = 0.0
    """When it last wrote, in seconds of the epoch."""
    jobs: list[Run] = field(default_factory=list)
    verdict: str = ""
    overrides: list[str] = field(default_factory=list)
    numbers: dict[str, Any] = field(default_factory=dict)
    """updates, planned, loss, eval_loss, accuracy, grad_norm, skipped, seconds, exit_code; None where not known."""

    @property
    def when(self) -> str:
        return datetime.fromtimestamp(self.time).strftime("%Y-%m-%d %H:%M")

    @property
    def counts(self) -> dict[str, int]:
        """How many jobs had each verdict, the most frequent first."""
        return dict(Counter(job.verdict for job in self.jobs).most_common())

    @cached_property
    def config(self) -> dict[str, Any]:
        """Dotted field -> value of its configuration; a group's name -> the option that was chosen."""
        choices = choices_of(self.path, told_by(self.path))
        return fields_of(self.path) | {group: value(str(option)) for group, option in choices.items()}


def find(root: Path) -> list[Run]:
    """Runs and sweeps, newest first; their files are not read yet."""
    found = list(search(root, root, None))
    for run in found:
        if run.kind == "sweep":
            run.time = max((job.time for job in run.jobs), default=modified(str(run.path / "multirun.yaml")))
            run.jobs.sort(key=lambda job: natural(job.name))
    return sorted(found, key=lambda run: -run.time)


def search(folder: Path, root: Path, sweep: Run | None) -> Iterator[Run]:
    """Jobs go to their sweep; everything else is yielded."""
    try:
        with os.scandir(folder) as entries:
            names = {entry.name: entry for entry in entries}
    except OSError:
        return
    name = os.path.relpath(folder, root)
    if names.keys() & {".hydra", "metrics.jsonl", "diagnosis.json"}:
        run = Run(folder, name, "job" if sweep else "run", written(names))
        if sweep:
            sweep.jobs.append(run)
            return
        yield run
        for entry in names.values():  # a watched loop's other optimizers
            if re.fullmatch(r"optimizer\d+", entry.name) and entry.is_dir(follow_symlinks=False):
                yield from search(folder / entry.name, root, None)
        return
    if "multirun.yaml" in names and sweep is None:
        sweep = Run(folder, name, "sweep")
        yield sweep
    for entry in names.values():
        if entry.is_dir(follow_symlinks=False) and not entry.name.startswith("."):
            yield from search(folder / entry.name, root, sweep)


def written(names: dict[str, os.DirEntry[str]]) -> float:
    """When a run last wrote."""
    return next((modified(names[name].path) for name in WRITTEN if name in names), 0.0)


def modified(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0


def natural(name: str) -> list[Any]:
    """Sorts 2 before 10."""
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.split(r"(\d+)", name)]


def read(run: Run, sweep: Run | None = None) -> Run:
    """Fill in what its files say."""
    if run.kind == "sweep":
        for job in run.jobs:
            read(job, run)
        return run
    told, there = told_by(run.path), (run.path / "diagnosis.json").exists()
    run.verdict = told.get("verdict") or refused(told) or ("error" if told else "")
    try:
        run.numbers = numbers(run.path, told)
    except (ValueError, KeyError, TypeError, AttributeError):
        run.verdict = "broken"
    if there and not told:
        run.verdict = "broken"
    elif not run.verdict:
        run.verdict = state(run.path, sweep.path if sweep else None)
    run.overrides = told.get("overrides") or typed(run.path)
    return run


def typed(path: Path) -> list[str]:
    try:
        return overrides_of(path)
    except (OSError, ValueError):
        return []


def state(path: Path, sweep: Path | None = None) -> str:
    """What becomes of a run that has left no diagnosis.json."""
    if locked(path) or (sweep is not None and locked(sweep)):
        return "running"
    began = (path / ".hydra").is_dir() or (path / "environment.json").is_file()  # the second of a watched loop
    return "killed" if began else "pretrained"


def numbers(path: Path, told: dict[str, Any]) -> dict[str, Any]:
    """The key numbers of a run."""
    kept = told.get("measured") or measured(path)
    outcome = told.get("outcome") or {}
    last = evaluated(path, told)
    return {
        "updates": kept["updates"],
        "planned": told.get("planned"),
        "loss": number(kept["loss/final"]),
        "eval_loss": number(last.get("eval/loss")),
        "accuracy": number(last.get("eval/accuracy")),
        "grad_norm": number(kept["grad/norm_max"]),
        "skipped": kept["skipped"],
        "seconds": number(outcome.get("seconds")),
        "exit_code": told.get("exit_code"),
    }


def together(run: Run) -> None:
    """A sweep's numbers: the lowest losses, the largest norm and accuracy, the sum of the others."""
    ways = {"loss": min, "eval_loss": min, "accuracy": max, "grad_norm": max, "exit_code": max}
    for name in ("updates", "planned", "loss", "eval_loss", "accuracy", "grad_norm", "skipped", "seconds", "exit_code"):
        there = [v for job in run.jobs if (v := job.numbers.get(name)) is not None and v == v]
        run.numbers[name] = ways.get(name, sum)(there) if there else None  # type: ignore[operator]
    run.verdict = ", ".join(f"{count} {verdict}" for verdict, count in run.counts.items())
    run.overrides = differing(run.jobs)


def differing(jobs: Sequence[Run]) -> list[str]:
    """What was swept, with the number of its values; then what all jobs have."""
    every = [job.overrides for job in jobs]
    names = swept(every)
    values = {
        n: {o.partition("=")[2] for job in every for o in job if o.lstrip("+~").startswith(f"{n}=")} for n in names
    }
    same = [o for o in (every[0] if every else []) if o.lstrip("+~").partition("=")[0] not in names]
    return [f"{name}=({len(given)})" for name, given in values.items()] + same
