"""What a watched loop leaves: the folder of a run, and a report as text."""

from __future__ import annotations

import contextlib
import re
import time
from pathlib import Path
from typing import Any

from gradlab.diagnosis.diagnose import Stream, diagnose, remaining
from gradlab.diagnosis.finding import SEVERITIES, Diagnosis
from gradlab.diagnosis.options import Thresholds
from gradlab.loggers.local import RunFiles
from gradlab.report.pages import run as page
from gradlab.runs.ending import write
from gradlab.train import environment
from gradlab.train.trainer import Outcome
from gradlab.update.recorder import Layers
from gradlab.watch.faults import Seen
from gradlab.watch.follower import Follower
from gradlab.watch.numbers import Numbers
from gradlab.watch.place import Place, hold

UNMEASURED = "not_measured"
"""The verdict where no update was seen, or no loss."""


FILES = ("metrics.jsonl", "layers.jsonl", "environment.json", "diagnosis.json", page.NAME)
"""What an optimizer's folder holds."""


def forget(top: Path) -> None:
    """An earlier watch of this folder may have had more optimizers: lists of runs would show them as this one's."""
    with contextlib.suppress(OSError):
        for folder in [each for each in top.iterdir() if re.fullmatch(r"optimizer\d+", each.name)]:
            for name in FILES:
                (folder / name).unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # somebody else's files are in it
                folder.rmdir()


class Output:
    """Of one optimizer."""

    def __init__(self, place: Place, monitor: Any, model: Any, follower: Follower) -> None:
        self.place, self.follower = place, follower
        self.folder: Path | None = None
        """None where this process writes nothing."""
        self.unwritten = ""
        """Why the files are not whole."""
        self.held = contextlib.ExitStack()
        self.numbers = Numbers(monitor, model, follower.names, follower.params, self.take)
        self.stream = Stream(Thresholds(), follower.names)
        self.files = RunFiles()
        self.kept = [0, 0]
        """Bytes of the files, where the watch has been there before."""
        self.status = "completed"
        self.error: str | None = None
        self.lines = self.skipped = 0
        self.began = self.seconds = 0.0
        self.clips = self.half = False
        self.final: Diagnosis | None = None

    def open(self) -> None:
        """Begin to write, or go on."""
        first, self.began = not self.began, time.monotonic()
        if (top := self.place.take()) is None:
            return
        index = self.follower.index
        if first and not index:
            forget(top)
        self.folder = folder = top / f"optimizer{index}" if index else top
        try:
            self.files = RunFiles(folder, self.numbers.observed.header(), self.kept)
            for name in ("diagnosis.json", page.NAME):  # of an earlier one: they are not this one's
                (folder / name).unlink(missing_ok=True)
        except OSError as error:
            raise ValueError(f"watch: folder is {str(self.place.path)!r}, which cannot be written: {error}") from None
        environment.record(folder, self.numbers.device)
        hold(folder, self.held)

    def take(self, metrics: dict[str, Any], layers: Layers | None) -> None:
        """Take in a line."""
        self.lines += 1
        self.skipped += metrics["update/skipped"]
        self.clips |= metrics["clip/coefficient"] < 1
        try:
            self.files.write(metrics, layers)
        except OSError as error:
            self.stop(error)
        if "train/loss" in metrics:
            self.stream.observe(metrics, layers)

    def stop(self, error: OSError) -> None:
        """A full disk ends the writing, and not the watching."""
        files, self.files = self.files, RunFiles()
        self.unwritten = f"{self.place.path} is not whole: {error}"
        with contextlib.suppress(OSError):
            files.close()

    def diagnose(self, faults: list[Seen], scaled: bool) -> Diagnosis:
        """Of all lines so far; a mistake in the loop comes before what it brings about."""
        status = "completed" if self.status == "completed" else "interrupted"  # an exception is no failed update
        found = diagnose(self.stream, status, half=self.half or scaled, scaled=scaled, clips=self.clips)
        if found.verdict == "interrupted" and self.error:
            found.sentence = f"{found.sentence}: {self.error}"
        told = [seen.finding() for seen in faults]
        found.findings = sorted([*told, *found.findings], key=lambda f: SEVERITIES.index(f.severity))
        if told and (worst := found.findings[0]).severity == "critical" and worst.code in {f.code for f in told}:
            found.verdict, found.sentence = worst.code, worst.sentence
            found.evidence |= worst.evidence
        if found.verdict == "healthy" and not self.stream.history.attempts:
            found.verdict, found.sentence = UNMEASURED, self.unmeasured()
        return found

    def unmeasured(self) -> str:
        """Why there is no update to judge by."""
        passes = self.follower.backwards
        if self.lines:
            return "no loss could be read: it is seen where backward() is called on one number"
        if not passes:
            return "no backward pass reached this optimizer's parameters"
        seen = f"{passes} backward pass{'es' if passes > 1 else ''}"
        return f"{seen}, and no step of this optimizer: it was not called, or it is compiled"

    def close(self, scale: Any, faults: list[Seen], status: str, error: str | None, scaled: bool) -> None:
        """Write what there is. A loop without a single update leaves its files all the same."""
        self.status, self.error = status, error
        self.seconds += time.monotonic() - self.began
        try:
            self.numbers.close(scale)
            self.kept = self.files.flush()
            self.files.close()
        except OSError as failed:
            self.stop(failed)
        self.final = self.diagnose(faults, scaled)

    def write(self, watch: dict[str, Any]) -> None:
        """diagnosis.json and the page. watch: what is told of the loop."""
        if self.folder is not None and self.final is not None:
            try:
                self.finish(self.folder, self.final, self.status, self.error, watch)
            except OSError as failed:
                self.unwritten = f"{self.place.path} is not whole: {failed}"
        self.held.close()

    def finish(self, folder: Path, final: Diagnosis, status: str, error: str | None, watch: dict[str, Any]) -> None:
        outcome = Outcome(status, error, self.lines, self.numbers.applied, seconds=self.seconds)
        job: dict[str, Any] = {"overrides": [], "planned": None, "remedy": None, "remedies": [], "watch": watch}
        write(folder, final, outcome, None, int(final.ill or status == "failed"), job)
        page.finished(folder, {})

    def report(self, faults: list[Seen], scaled: bool, several: bool) -> list[str]:
        """What was found, first what is wrong with the loop. several: this is one of several optimizers."""
        found = self.final or self.diagnose(faults, scaled)
        kind = type(self.follower.optimizer).__name__
        name = f"optimizer {self.follower.index} ({kind}): " if several else ""
        skipped = f", {self.skipped} of them skipped" if self.skipped else ""
        many = f"{self.lines} update{'s' if self.lines != 1 else ''}"
        own, lines = {seen.name for seen in faults}, []
        says = "" if found.verdict in own else f": {found.sentence}"
        lines.append(f"{name}verdict: {found.verdict} ({many}{skipped}){says}")
        for seen in faults:
            lines += [seen.line, f"    {seen.when}"]
        lines += [f"{f.severity}: {f.sentence}" for f in remaining(found) if f.code not in own]
        lines += [f"its parameters were also moved by {each}, which was not named" for each in self.follower.others]
        lines += [f"it ended with: {self.error}"] * bool(self.error and self.error not in says)
        unable = f", {len(found.unchecked)} could not be: diagnosis.json says why" if found.unchecked else ""
        return [*lines, f"{len(found.checked)} rules were applied to the numbers{unable}"]
