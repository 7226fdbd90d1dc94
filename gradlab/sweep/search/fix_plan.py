"""What `python -m gradlab.fix` is to do on a failed run: its plan, which fix.json keeps beside what came of it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from gradlab.base.command import key, pasted, untreated
from gradlab.base.json_lines import number, read_object
from gradlab.base.option import Invalid
from gradlab.config.schema import Config
from gradlab.remedies.candidates import Candidate, candidates_for
from gradlab.remedies.evidence import evidence
from gradlab.runs.outcome_class import HEALTHY, learns
from gradlab.runs.record import RunRecord
from gradlab.sweep.search.cure import end
from gradlab.sweep.search.fix_trial import Change, Number, Plan

NAME = "fix.json"
AROUND = 0.5
"""Seconds that a run takes beside its updates."""
NOT_OF_THE_RUN = ("expect", "resume", "fix")
"""Overrides of the failed run that its trials are not given."""


def check(run: RunRecord) -> None:
    """Raise `Invalid` where there is nothing to fix, and say why."""
    run.check("diagnosis.json", "metrics.jsonl", ".hydra/config.yaml")
    if not (run.path / ".hydra" / "overrides.yaml").is_file():
        raise Invalid("FOLDER", run.path, "must be the folder of a run of gradlab: only those can be run again")
    if run.verdict is None or run.status is None:
        raise Invalid("FOLDER", run.path, f"has no verdict to begin with: {run.diagnosis.get('sentence') or run.state}")
    if run.verdict in (*HEALTHY, "interrupted"):
        raise Invalid("FOLDER", run.path, f"has nothing to fix: its verdict is {run.verdict}")


def place(run: RunRecord) -> Path:
    """The folder beside the run; of a job beside its sweep, whose jobs are all that lies below it."""
    of = run.sweep or run.path.absolute()
    job = f"_{'_'.join(run.path.resolve().relative_to(of).parts)}" if run.sweep else ""
    return of.parent / f"{of.name}{job}_fix"


def make(run: RunRecord, config: Config) -> tuple[Plan, list[Candidate]]:
    """The plan for a failed run; and what it would be to change in the user's code.

    config: the run's, with its own remedies applied.
    """
    given = untreated(run.overrides, run.remedy)
    candidates = candidates_for(evidence(run), config, given, search=True)
    own = [*(o for o in given if key(o) not in NOT_OF_THE_RUN), *one_process(run, config)]
    died = run.status in ("failed", "given_up")
    plan = Plan(
        verdict=str(run.verdict),
        overrides=tuple(own),
        seed=config.seed,
        planned=int(run.diagnosis.get("planned") or len(run.updates)),
        died_at=len(run.updates) if died else None,
        end=None if learns(run.diagnosis) else end(run.diagnosis),
        changes=[
            Change(c.name, tuple(c.overrides), c.why, shrinkable(c.overrides, config))
            for c in candidates
            if c.overrides
        ],
    )
    return plan, [c for c in candidates if c.lines]


def one_process(run: RunRecord, config: Config) -> list[str]:
    """What gives a run of several ranks the same updates in one process."""
    size = int(run.environment.get("world_size") or 1)
    if size == 1 or config.accumulation.varies:
        return []
    if hasattr(config.accumulation, "steps"):
        return [f"accumulation.steps={config.accumulation.steps * size}"]
    return []  # of a wanted global batch the micro-batches follow


def shrinkable(overrides: list[str], config: Config) -> Number | None:
    """The number of a change that may turn out larger: a lowered rate, a bound that was not there or was looser.

    A raised rate and a loosened bound stay as they were derived: nearer to the run's own they only train more slowly.
    """
    values = {key(o): o.partition("=")[2] for o in overrides}
    if list(values) == ["optimizer.lr"] and float(values["optimizer.lr"]) < config.optimizer.lr:
        return Number("optimizer.lr", config.optimizer.lr)
    if values.keys() <= {"clip", "clip.max_norm"} and "clip.max_norm" in values:
        own = float(getattr(config.clip, "max_norm", math.inf))
        return Number("clip.max_norm", own) if float(values["clip.max_norm"]) < own else None
    return None


def seconds(run: RunRecord, plan: Plan) -> float:
    """How long such a run takes to its end, by what the failed one took."""
    return AROUND + float(run.outcome.get("seconds") or 0.0) / max(len(run.updates), 1) * plan.planned


def again(plan: Plan, change: Change | None) -> list[str]:
    """The overrides of the cured run, to be pasted."""
    return pasted(list(plan.overrides), [*(change.overrides if change else ()), "expect=healthy"])


def kept(folder: Path) -> dict[str, Any]:
    """What fix.json in a folder holds; empty where there is none."""
    found: dict[str, Any] = number(read_object(folder / NAME) or {})
    return found


def from_dict(content: dict[str, Any]) -> Plan:
    """The inverse of `asdict`."""

    def made(c: dict[str, Any]) -> Change:
        number = Number(**c["number"]) if c["number"] else None
        return Change(c["name"], tuple(c["overrides"]), c["why"], number, tuple(map(made, c["parts"])))

    changes = [made(c) for c in content["changes"]]
    return Plan(**content | {"overrides": tuple(content["overrides"]), "changes": changes})
