"""What a run's end said, from its folder; and what can be said of one that has not ended."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

from gradlab.base.command import command
from gradlab.base.json_lines import number
from gradlab.base.lock import locked
from gradlab.base.option import Invalid
from gradlab.diagnosis.finding import Diagnosis, Finding
from gradlab.diagnosis.replay.overflow import Overflow
from gradlab.diagnosis.replay.ranges import Range
from gradlab.remedies.candidates import Try
from gradlab.runs import ending
from gradlab.runs.files import fields_of, refused, runs_below, told_by
from gradlab.runs.measured import lines_of
from gradlab.runs.search import state, typed
from gradlab.train.outcome import Outcome

T = TypeVar("T")


@dataclass
class Past:
    """A run, as its folder has it."""

    folder: Path
    state: str
    """Its verdict, or what stands for it."""
    lines: list[str]
    """What is said of it."""
    good: bool
    updates: list[dict[str, Any]] = field(default_factory=list)
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)

    @property
    def running(self) -> bool:
        return self.state == "running"


def read(folder: Path) -> Past:
    """Raise `Invalid` where there is no run, or none that can be read."""
    if not folder.is_dir():
        raise Invalid("FOLDER", folder, "no such folder")
    if not any((folder / name).exists() for name in (".hydra", "metrics.jsonl", "diagnosis.json")):
        raise Invalid("FOLDER", folder, f"must be the folder of a run (it holds no metrics.jsonl){runs_below(folder)}")
    try:
        every = [{k: number(v) for k, v in line.items()} for line in lines_of(folder / "metrics.jsonl")]
    except ValueError as error:
        raise Invalid("FOLDER", folder, f"holds a metrics.jsonl that cannot be read ({error})") from None
    config = fields_of(folder)
    told, there = told_by(folder), (folder / "diagnosis.json").exists()
    updates = [line for line in every if "train/loss" in line]
    if there and not told:
        past = Past(folder, "broken", ["diagnosis.json cannot be read", f"all of it: {folder}"], False)
    elif not told:
        past = unended(folder, updates)
    elif told.get("verdict") is None:
        says = [str(told.get("sentence")), f"all of it: {folder}"]
        past = Past(folder, refused(told) or "error", says, False)
    else:
        past = ended(folder, told, config)
    past.updates, past.evaluations, past.config = updates, [line for line in every if "eval/loss" in line], config
    return past


def ended(folder: Path, told: dict[str, Any], config: dict[str, Any]) -> Past:
    """As at its end."""
    told = numbers(told)
    diagnosis = of(Diagnosis, told)
    diagnosis.findings = [of(Finding, f) for f in told.get("findings") or []]
    overflow = of(Overflow, told["first_overflow"]) if told.get("first_overflow") else None
    if overflow is not None:
        overflow.ranges = [of(Range, r) for r in told["first_overflow"].get("ranges") or []]
        for name in ("outputs", "targets"):
            given = told["first_overflow"].get(name)
            setattr(overflow, name, of(Range, given) if given else None)
    outcome = of(Outcome, told.get("outcome") or {})
    precision = SimpleNamespace(check_every=config.get("precision.check_every", 1))
    overrides = told.get("overrides") or typed(folder)
    tries = [of(Try, t) for t in told.get("remedies") or []]
    parts = (diagnosis, outcome, overflow, SimpleNamespace(precision=precision), overrides, folder, tries)
    watch = told.get("watch")  # a watched loop said it in its own words
    lines = [*watch["report"], f"all of it: {folder}"] if isinstance(watch, dict) else ending.tell(*parts)
    code, expectation = ending.judge(config.get("expect"), diagnosis)
    lines += [expectation] * bool(expectation)
    return Past(folder, diagnosis.verdict, lines, told.get("exit_code", code) == 0)


def unended(folder: Path, updates: list[dict[str, Any]]) -> Past:
    """Of a run that has left no diagnosis.json."""
    sweep = next((p for p in folder.resolve().parents if (p / "multirun.yaml").is_file()), None)
    seen = state(folder, sweep)
    says = {
        "running": "a process is at work here",
        "killed": "it ended without a word: no diagnosis.json, and no process at work",
        "pretrained": "weights that other runs begin with",
    }
    lines = [says[seen]]
    if updates:
        last, skipped = updates[-1], sum(bool(line["update/skipped"]) for line in updates)
        lines.append(f"update {last['update']}, epoch {last['epoch']}: loss {last['train/loss']:.4g}")
        lines[-1] += f", norm {last['grad/norm']:.4g}" + f", {skipped} skipped" * bool(skipped)
    else:
        lines.append("no update is in its metrics.jsonl")
    if seen == "killed" and (folder / "checkpoint.pt").is_file() and sweep is None:
        lines.append(f"to go on: {command([f'resume={folder}'])}")
    elif seen == "killed" and sweep is not None and not locked(sweep):
        lines.append(f"to go on with its sweep: {command([f'resume={sweep}'])}")
    return Past(folder, seen, [*lines, f"all of it: {folder}"], seen != "killed")


def of(cls: type[T], given: dict[str, Any]) -> T:
    """A dataclass from its dictionary; what another version wrote and this one does not know is left out."""
    known = {f.name for f in fields(cls)}  # type: ignore[arg-type]
    return cls(**{k: v for k, v in given.items() if k in known})


def numbers(value: Any) -> Any:
    """The numbers that JSON has no signs for, wherever they are."""
    if isinstance(value, dict):
        return {k: numbers(v) for k, v in value.items()}
    return [numbers(v) for v in value] if isinstance(value, list) else number(value)
