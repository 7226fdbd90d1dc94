"""The lines that sum up a run: at its end, or later from its record, also of one that has not ended."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from gradlab.base.command import command, pasted, untreated
from gradlab.base.json_lines import from_object, number
from gradlab.base.lock import locked
from gradlab.base.visible import visible
from gradlab.diagnosis.diagnose import remaining
from gradlab.diagnosis.finding import Diagnosis
from gradlab.diagnosis.replay.overflow import Overflow
from gradlab.remedies.candidates import Candidate
from gradlab.runs import expectation
from gradlab.runs.record import BROKEN, KILLED, PRETRAINED, RUNNING, RunRecord
from gradlab.train.outcome import Outcome

WHY_UNENDED = {
    RUNNING: "a process is at work here",
    KILLED: "it ended without a diagnosis.json, and no process is at work",
    PRETRAINED: "weights that other runs begin with",
}


@dataclass
class Summary:
    """The lines that sum up a run."""

    lines: list[str]
    good: bool
    """Whether the run ended as expected, or may still."""


def summarise(run: RunRecord) -> Summary:
    """The lines of the run's end, or what is known of a run that has not ended."""
    if run.state == BROKEN:
        lines, good = ["diagnosis.json cannot be read"], False
    elif run.state in WHY_UNENDED:
        lines, good = unended(run), run.state != KILLED
    elif run.verdict is None:
        lines, good = [str(run.diagnosis.get("sentence"))], False
    else:
        return ended(run)
    return Summary([*lines, f"folder: {run.path}"], good)


def ended(run: RunRecord) -> Summary:
    """The summary that was printed when the run ended."""
    content = number(run.diagnosis)
    watch = content.get("watch")  # a watched loop has a report of its own
    if isinstance(watch, dict):
        lines = [*watch["report"], f"folder: {run.path}"]
    else:
        precision = SimpleNamespace(check_every=run.fields.get("precision.check_every", 1))
        lines = summary_lines(
            expectation.diagnosis_of(run),
            from_object(Outcome, content.get("outcome") or {}),
            run.first_overflow,
            SimpleNamespace(precision=precision),
            untreated(run.overrides, run.remedy),
            run.path,
            [from_object(Candidate, each) for each in content.get("remedies") or []],
        )
    code, sentence = expectation.judged(run)
    return Summary(lines + [sentence] * bool(sentence), content.get("exit_code", code) == 0)


def unended(run: RunRecord) -> list[str]:
    """What is known of a run that has left no diagnosis.json."""
    lines = [WHY_UNENDED[run.state]]
    if run.updates:
        last, skipped = run.updates[-1], sum(bool(line["update/skipped"]) for line in run.updates)
        lines.append(f"update {last['update']}, epoch {last['epoch']}: loss {last['train/loss']:.4g}")
        lines[-1] += f", norm {last['grad/norm']:.4g}" + f", {skipped} skipped" * bool(skipped)
    else:
        lines.append("no update is in its metrics.jsonl")
    if run.state == KILLED and resumable(run) is not None:
        lines.append(f"to resume {'its sweep' if run.sweep else 'it'}: {command([f'resume={resumable(run)}'])}")
    return lines


def resumable(run: RunRecord) -> Path | None:
    """The folder with which a killed run can be resumed: its own, or that of its sweep; None where neither can."""
    if run.sweep is None:
        return run.path if (run.path / "checkpoint.pt").is_file() else None
    return None if locked(run.sweep) else run.sweep


def summary_lines(
    diagnosis: Diagnosis,
    outcome: Outcome,
    overflow: Overflow | None,
    config: Any,
    overrides: list[str],
    folder: Path,
    candidates: list[Candidate],
) -> list[str]:
    """The lines that sum up a run at its end."""
    lines = [diagnosis.sentence]
    causes = next((f.causes for f in diagnosis.findings if f.code == diagnosis.verdict), [])
    lines += [f"likely because: {'; or '.join(causes)}"] * bool(causes)
    if outcome.status == "interrupted":
        lines.append(f"to resume it: {command([f'resume={folder}'])}")
    said = [diagnosis.sentence, *(f.sentence for f in diagnosis.findings)]
    if outcome.error and not any(outcome.error in sentence for sentence in said):
        every = getattr(config.precision, "check_every", 1)
        checks = f" (checked every {every} updates)" if outcome.scale_too_small and every > 1 else ""
        lines.append(f"{'RuntimeError: ' * (outcome.status == 'failed')}{outcome.error}{checks}")
    if outcome.status == "failed":
        lines += course(diagnosis.evidence, outcome)
    same = diagnosis.verdict == "nan_loss" and overflow is not None and overflow.phase == "loss"
    if overflow is not None and not same and not any(str(overflow) in f.sentence for f in diagnosis.findings):
        moved = not (folder / "crash.pt").is_file()  # by an update that was applied
        lines.append("with the final weights, " * moved + str(overflow))
    if outcome.eval:
        losses = [f"{e['eval/loss']:.4g}{'' if e['epoch'] else ' (before training)'}" for e in outcome.eval]
        lines.append(f"eval losses: {', '.join(losses)}")
    lines += [f"{f.severity}: {f.sentence}" for f in remaining(diagnosis)]
    lines.append(checked(diagnosis))
    if candidates:
        lines.append("to try, one at a time:")
    for c in candidates:
        again = command([*pasted(overrides, c.overrides), "expect=healthy"])
        lines.append(f"  {again if c.overrides else f'in your code: {c.lines}'}   # {c.why}")
    to_cure = diagnosis.verdict != "too_short" and any(c.overrides for c in candidates)  # code is changed by hand
    if to_cure and folder.name:
        lines.append(f"to find the smallest change that cures it: {command([str(folder)], 'gradlab.fix')}")
    lines.append(f"folder: {folder}")
    return lines


def checked(diagnosis: Diagnosis) -> str:
    """Which rules could be applied, and why others could not."""
    reasons: dict[str, list[str]] = {}
    for code, why in diagnosis.unchecked.items():
        reasons.setdefault(why, []).append(code)
    unchecked = [f"{', '.join(codes)} ({why})" for why, codes in reasons.items()]
    summary = f"{len(diagnosis.checked)} rules were checked"
    return f"{summary}; not checked: {'; '.join(unchecked)}" if unchecked else summary


def course(evidence: dict[str, Any], outcome: Outcome) -> list[str]:
    """When it began to fail, and what followed."""
    done = f"epochs completed: {outcome.epochs_completed}"
    if "scale_fell_from" not in evidence:
        return [f"{done}; failed at update {outcome.first_failed_attempt}, in epoch {outcome.first_failed_epoch}"]
    began = evidence["scale_fell_from"]
    count, updates = evidence["skipped_since"], outcome.attempts - began + 1
    skipped = f"{count} of the {updates} updates from there on were skipped"
    if count == updates:
        skipped = "every update from there on was skipped"
    elif evidence["skipped_last_in_a_row"] > 1:
        skipped += f", the last {evidence['skipped_last_in_a_row']} in a row"
    return [f"{done}; the scale began to fall at update {began}, in epoch {evidence['scale_fell_in_epoch']}", skipped]


def print_panel(title: str, lines: list[str], good: bool) -> None:
    """A panel in a terminal, plain lines elsewhere; commands are never broken, so that they can be pasted."""
    title, lines = visible(title), [visible(line) for line in lines]
    if not sys.stdout.isatty():
        print(f"== {title}", *lines, sep="\n", flush=True)
        return
    from rich.console import Console
    from rich.rule import Rule
    from rich.text import Text

    console, colour = Console(highlight=False, soft_wrap=True), "green" if good else "red"
    console.print(Rule(Text(title, style=f"bold {colour}"), style=colour))
    for line in lines:
        console.print(Text(line))
    console.print(Rule(style=colour))
