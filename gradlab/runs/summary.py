"""What is printed of a run that has ended, or has not, from its record."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

from gradlab.base.command import command, untreated
from gradlab.base.json_lines import from_object, number
from gradlab.base.lock import locked
from gradlab.remedies.candidates import Try
from gradlab.runs import ending, expectation
from gradlab.runs.record import BROKEN, KILLED, PRETRAINED, RUNNING, RunRecord
from gradlab.train.outcome import Outcome

UNENDED = {
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
    elif run.state in UNENDED:
        lines, good = unended(run), run.state != KILLED
    elif run.verdict is None:
        lines, good = [str(run.diagnosis.get("sentence"))], False
    else:
        return ended(run)
    return Summary([*lines, f"folder: {run.path}"], good)


def ended(run: RunRecord) -> Summary:
    """As it was printed when the run ended."""
    content = number(run.diagnosis)
    watch = content.get("watch")  # a watched loop has a report of its own
    if isinstance(watch, dict):
        lines = [*watch["report"], f"folder: {run.path}"]
    else:
        precision = SimpleNamespace(check_every=run.fields.get("precision.check_every", 1))
        lines = ending.summary_lines(
            expectation.diagnosis_of(run),
            from_object(Outcome, content.get("outcome") or {}),
            run.first_overflow,
            SimpleNamespace(precision=precision),
            untreated(run.overrides, run.remedy),
            run.path,
            [from_object(Try, t) for t in content.get("remedies") or []],
        )
    code, sentence = expectation.judged(run)
    return Summary(lines + [sentence] * bool(sentence), content.get("exit_code", code) == 0)


def unended(run: RunRecord) -> list[str]:
    """What is known of a run that has left no diagnosis.json."""
    lines = [UNENDED[run.state]]
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
