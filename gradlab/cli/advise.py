"""`python -m gradlab.advise FOLDER...`: max_norm, learning rate and accumulation, from what a run measured.

advice.json: `advice`, a list of `about` (clip, lr, accumulation), `says`, `override` (to be pasted; null where there
was not enough to go by), `rests_on` (the measurement) and `numbers`; `run`: what was read. Numbers that are not finite
are strings, as in metrics.jsonl.
"""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path

from gradlab.base.command import Parser, exit_code
from gradlab.base.json_lines import write_json
from gradlab.base.option import require
from gradlab.base.visible import visible
from gradlab.diagnosis.advice.accumulation import batch_advice
from gradlab.diagnosis.advice.learning_rate import failure_advice, finetuning_advice, update_advice
from gradlab.diagnosis.advice.line import Advice
from gradlab.diagnosis.advice.max_norm import TOO_LOW, clip_advice, steady_norms
from gradlab.runs.advice_facts import (
    applied_before_failure,
    architecture,
    before_failure,
    causes_of_verdict,
    clipped_to,
    failed_at,
    pretraining_rate,
    record_for_advice,
)
from gradlab.runs.folder_files import reading
from gradlab.runs.outcome_class import HEALTHY
from gradlab.runs.record import RunRecord
from gradlab.runs.trust import refuse_links

DESCRIPTION = """\
Advises on max_norm, the learning rate and accumulation, from a run's metrics.jsonl, layers.jsonl and configuration;
each line names the measurement that it rests on, and an override to paste. Writes FOLDER/advice.json."""

UNJUDGED = ("interrupted", "too_short")
"""Verdicts of runs of which nothing is known to be wrong."""


def advise(run: RunRecord, batch: int | None = None, world_size: int = 1, hours: float | None = None) -> list[Advice]:
    """All advice that the run's measurements allow."""
    config, failure = run.config, failed_at(run)
    failed = failure is not None or run.verdict in ("exploding", "diverged")
    part = steady_norms([line["grad/norm"] for line in applied_before_failure(run)], failed)
    clip = {"name": run.choices.get("clip")} | (config.get("clip") or {})
    clipped = run.updates[-1].get("clip/fraction") if run.updates else None
    summed = (config.get("loss") or {}).get("reduction") == "sum"
    found = clip_advice(part, architecture(run), clip, clipped, summed)
    left, wanted = clipped_to(run)
    if wanted and left < TOO_LOW and run.choices.get("optimizer") == "sgd":
        kept = f"keep it: it leaves {left:.2g} of the gradient, and at this rate updates would be {1 / left:.2g} times"
        found = [Advice("clip", f"{kept} as large without it", None, "clip/coefficient, its median")]
    base = float((config.get("optimizer") or {}).get("lr") or math.nan)
    line = next((line for line in run.updates if line["attempt"] == failure), {})
    well = not failed and run.verdict in (None, *HEALTHY, *UNJUDGED)
    own = None if well else suggested_rate(run)
    if own is not None:
        found.append(own)
    elif (lr := line.get("lr")) is not None:
        found.append(failure_advice(f"the failure that ended the run began at update {failure}", lr, base))
    elif failed and math.isfinite(base):
        found.append(failure_advice(f"the run's verdict is {run.verdict}", base, base))
    ratios = [line["update/ratio"] for line in before_failure(run) if "update/ratio" in line]
    if own is None:
        found.append(update_advice(ratios, base, well, causes_of_verdict(run), 1.0 if wanted else left))
    tuned = bool(config.get("pretrain") or config.get("init_from"))
    found += finetuning_advice(pretraining_rate(run) if tuned else None, hours)
    if batch is not None:
        size = (config.get("data") or {}).get("batch_size")
        if size is None:
            found.append(Advice("accumulation", "not enough: the run's batch size is not known", None, "no .hydra"))
        else:
            found += batch_advice(batch, int(size), world_size)
    return found


def suggested_rate(run: RunRecord) -> Advice | None:
    """The rate that the run itself suggests, with its reason: one run, one rate."""
    for each in run.diagnosis.get("remedies") or []:
        override, *others = each.get("overrides") or [""]
        if override.startswith("optimizer.lr=") and not others:
            return Advice("lr", f"{override.partition('=')[2]}, as the run suggests", override, str(each.get("why")))
    return None


def write(run: RunRecord, found: list[Advice]) -> None:
    seen = {
        "updates": len(run.updates),
        "applied_before_failure": len(applied_before_failure(run)),
        "failed_at": failed_at(run),
    }
    content = {"advice": [asdict(a) for a in found], "run": seen | {"architecture": architecture(run)}}
    write_json(run.path / "advice.json", content)


def summary(run: RunRecord, found: list[Advice]) -> list[str]:
    lines = [f"== {run.path}"]
    for advice in found:
        lines.append(f"{advice.about}: {advice.says}")
        lines.append(f"  from: {advice.rests_on}")
        if advice.override is not None:
            lines.append(f"  {advice.override}")
    return lines


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit code."""
    return exit_code(work, arguments)


def work(arguments: list[str]) -> int:
    p = Parser("python -m gradlab.advise", description=DESCRIPTION)
    p.add_argument("folders", type=Path, nargs="+", metavar="FOLDER", help="the folder of a run")
    p.add_argument("--batch", type=int, metavar="N", help="the accumulation that makes updates of N samples")
    p.add_argument("--world-size", type=int, default=1, metavar="W", help="on so many ranks (1)")
    p.add_argument("--hours", type=float, metavar="H", help="hours of data to fine-tune on")
    args = p.parse_args(arguments)
    require(args.batch is None or args.batch >= 1, "--batch", args.batch, ">= 1")
    require(args.world_size >= 1, "--world-size", args.world_size, ">= 1")
    require(args.hours is None or args.hours > 0, "--hours", args.hours, "> 0")
    for run in [record_for_advice(folder) for folder in args.folders]:
        refuse_links("FOLDER", run.path)
        with reading(run.path):
            found = advise(run, args.batch, args.world_size, args.hours)
            write(run, found)
            print(*map(visible, summary(run, found)), sep="\n")
    return 0
