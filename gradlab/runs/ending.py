"""How a run ends: diagnosis.json, and the summary that is printed."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gradlab.base.command import command, pasted
from gradlab.base.json_lines import plain, write_json
from gradlab.base.visible import visible
from gradlab.diagnosis.diagnose import remaining
from gradlab.diagnosis.finding import Diagnosis
from gradlab.diagnosis.replay.replay import Overflow
from gradlab.remedies.candidates import Try
from gradlab.runs.measured import lost_at, measured
from gradlab.runs.record import RunRecord
from gradlab.train.outcome import Outcome


def content(
    folder: Path, diagnosis: Diagnosis, outcome: Outcome, overflow: Overflow | None, exit_code: int, job: dict[str, Any]
) -> dict[str, Any]:
    """What diagnosis.json holds: the verdict with its evidence, how the run ended, the exit code, and the job's."""
    found = diagnosis.as_dict() | {
        "ill": diagnosis.unhealthy,
        "outcome": asdict(outcome),
        "first_overflow": overflow.as_dict() if overflow else None,
        "exit_code": exit_code,
    }
    found |= job
    found["measured"] = measured(RunRecord(folder).updates, lost_at(found))
    made: dict[str, Any] = plain(found)
    return made


def write(folder: Path, content: dict[str, Any]) -> None:
    """Write diagnosis.json."""
    write_json(folder / "diagnosis.json", content)


def write_error(
    folder: Path, message: str, exit_code: int, remedy: dict[str, Any] | None = None, overrides: list[str] | None = None
) -> None:
    """diagnosis.json of a job of a sweep without a measurement: no verdict, and the reason."""
    content = {"verdict": None, "sentence": message, "exit_code": exit_code, "remedy": remedy, "overrides": overrides}
    with suppress(OSError):  # reported already, and the folder may be the fault
        write(folder, content)


def summary_lines(
    diagnosis: Diagnosis,
    outcome: Outcome,
    overflow: Overflow | None,
    config: Any,
    overrides: list[str],
    folder: Path,
    tries: list[Try],
) -> list[str]:
    """The lines that sum up a run at its end."""
    lines = [diagnosis.sentence]
    causes = next((f.causes for f in diagnosis.findings if f.code == diagnosis.verdict), [])
    lines += [f"likely because: {'; or '.join(causes)}"] * bool(causes)
    if outcome.status == "interrupted":
        lines.append(f"to resume it: {command([f'resume={folder}'])}")
    if outcome.error and outcome.error != diagnosis.sentence:
        every = getattr(config.precision, "check_every", 1)
        checks = f" (checked every {every} updates)" if outcome.scale_too_small and every > 1 else ""
        lines.append(f"{'RuntimeError: ' * (outcome.status == 'failed')}{outcome.error}{checks}")
    if outcome.status == "failed":
        lines += course(diagnosis.evidence, outcome)
    same = diagnosis.verdict == "nan_loss" and overflow is not None and overflow.phase == "loss"
    if overflow is not None and not same and not any(str(overflow) in f.sentence for f in diagnosis.findings):
        moved = not (folder / "crash.pt").is_file()  # by an update that was applied
        lines.append("on the weights of the end, " * moved + str(overflow))
    if outcome.eval:
        losses = [f"{e['eval/loss']:.4g}{'' if e['epoch'] else ' (before training)'}" for e in outcome.eval]
        lines.append(f"eval loss by epoch: {', '.join(losses)}")
    lines += [f"{f.severity}: {f.sentence}" for f in remaining(diagnosis)]
    lines.append(checked(diagnosis))
    if tries:
        lines.append("to try, one at a time:")
    for t in tries:
        again = command([*pasted(overrides, t.overrides), "expect=healthy"])
        lines.append(f"  {again if t.overrides else f'in your code: {t.lines}'}   # {t.why}")
    if tries and folder.name:
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
    skipped = f"{evidence['skipped_since']} of the {outcome.attempts - began + 1} updates from there on were skipped"
    if evidence["skipped_last_in_a_row"] > 1:
        skipped += f", the last {evidence['skipped_last_in_a_row']} in a row"
    return [f"{done}; the scale began to fall at update {began}, in epoch {evidence['scale_fell_in_epoch']}", skipped]


def show(title: str, lines: list[str], good: bool) -> None:
    """A panel in a terminal, plain lines elsewhere; commands are never broken, so that they can be pasted."""
    import sys

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
