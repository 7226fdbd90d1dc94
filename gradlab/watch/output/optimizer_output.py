"""The results of one optimizer in a watched loop: the folder of a run, its diagnosis, and a report as text."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gradlab.base.lock import turn
from gradlab.diagnosis.diagnose import MetricStream, diagnose, remaining
from gradlab.diagnosis.finding import SEVERITIES, Diagnosis, Finding
from gradlab.diagnosis.inspection import Inspection
from gradlab.diagnosis.measurements import Measurements
from gradlab.diagnosis.options import Thresholds
from gradlab.loggers.local import RunFiles
from gradlab.measure.rounded_off import narrow_types
from gradlab.report.pages import run_page
from gradlab.runs import diagnosis_file
from gradlab.train import environment
from gradlab.train.outcome import Outcome
from gradlab.update.recorder import Layers
from gradlab.update.stepping import keeps_second_moments
from gradlab.watch.call_site import format_site
from gradlab.watch.events import Seen
from gradlab.watch.faults import FaultRecord
from gradlab.watch.making_lines import deciding_line
from gradlab.watch.output.causes import cause_of, explain
from gradlab.watch.output.output_folder import OutputFolder
from gradlab.watch.output.update_metrics import UpdateMetrics
from gradlab.watch.tracking.optimizer_tracker import OptimizerTracker

NOT_MEASURED = "not_measured"
"""The verdict if no update was observed."""
OF_THE_STEP = {"updates_lost", "update_too_large", "stalled"}
"""Findings about what the optimizer's steps do to the weights."""
OF_THE_LOSS = {"unbounded_loss", "not_learning", "nan_loss"}
"""Findings about the loss: where it is computed."""
FILES = ("metrics.jsonl", "layers.jsonl", "environment.json", "diagnosis.json", run_page.NAME)
"""The files in an optimizer's folder."""


def remove_earlier_optimizers(top: Path) -> None:
    """An earlier watch of this folder may have had more optimizers: lists of runs would show them as this one's."""
    with contextlib.suppress(OSError):
        for folder in [each for each in top.iterdir() if re.fullmatch(r"optimizer\d+", each.name)]:
            for name in FILES:
                (folder / name).unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # it contains files of other programs
                folder.rmdir()


class OptimizerOutput:
    """Writes files while the loop runs; diagnoses, and writes the page, at its end."""

    def __init__(
        self, output_folder: OutputFolder, monitor: Any, model: Any, tracker: OptimizerTracker, seen: Seen
    ) -> None:
        self.output_folder, self.tracker, self.seen = output_folder, tracker, seen
        self.folder: Path | None = None
        """None if this process writes nothing."""
        self.write_error = ""
        """Why the files are incomplete."""
        self.lock = contextlib.ExitStack()
        self.metrics = UpdateMetrics(monitor, model, tracker.names, tracker.params, self.take)
        self.need_not_fall: Callable[[], str] = lambda: ""
        """Why its loss need not fall: see `Measurements.need_not_fall`."""
        self.makes_targets: Callable[[], str] = lambda: ""
        """Why its model may make its own targets: see `Measurements.makes_targets`."""
        self.inspection: Callable[[], Inspection | None] = lambda: None
        """Of its model's activations, in the latest passes that were looked at."""
        self.stream = MetricStream(Thresholds(), tracker.names)
        self.files = RunFiles()
        self.file_sizes = [0, 0]
        """Bytes of the files when the watch was left the last time."""
        self.status = "completed"
        self.error: str | None = None
        self.num_updates = self.num_skipped = 0
        self.started = self.seconds = 0.0
        self.clips = self.fp16 = False
        self.clips_whole = True
        self.final: Diagnosis | None = None

    def open(self) -> None:
        """Begin to write, or continue."""
        first, self.started = not self.started, time.monotonic()
        if (top := self.output_folder.create()) is None:
            return
        index = self.tracker.index
        if first and not index:
            remove_earlier_optimizers(top)
        self.folder = folder = top / f"optimizer{index}" if index else top
        try:
            self.files = RunFiles(folder, self.metrics.observed.header(), self.file_sizes)
            for name in ("diagnosis.json", run_page.NAME):  # of an earlier watch
                (folder / name).unlink(missing_ok=True)
        except OSError as error:
            path = str(self.output_folder.path)
            raise ValueError(f"watch: folder is {path!r}, which cannot be written: {error}") from None
        environment.record(folder, self.metrics.device)
        self.lock.enter_context(turn(folder, wait=False))  # lists of runs show it as running

    def take(self, metrics: dict[str, Any], layers: Layers | None) -> None:
        """Take the metrics of an update, and the record of its layers if there is one."""
        self.num_updates += 1
        self.num_skipped += metrics["update/skipped"]
        self.clips |= metrics["clip/coefficient"] < 1
        try:
            self.files.write(metrics, layers)
        except OSError as error:
            self.stop_writing(error)
        self.stream.observe(metrics, layers)

    def stop_writing(self, error: OSError) -> None:
        """A full disk ends the writing, and not the watch."""
        files, self.files = self.files, RunFiles()
        self.set_incomplete(str(error))
        with contextlib.suppress(OSError):
            files.close()

    def set_incomplete(self, why: str) -> None:
        self.write_error = f"{self.output_folder.path} is incomplete: {why}"

    def diagnose(self, faults: list[FaultRecord], scaled: bool) -> Diagnosis:
        """Diagnose the updates so far; a mistake in the loop comes before its consequences.

        scaled: whether a loss scale is in use.
        """
        status = "completed" if self.status == "completed" else "interrupted"  # an exception is no failed update
        zeroed = [name for names in self.metrics.zeroed_names().values() for name in names]
        never, half = [n for n in self.metrics.never_trained() if n not in zeroed], self.fp16 or scaled
        known = Measurements(
            status,
            fp16_forward=half,
            dynamic_loss_scale=scaled,
            clips=self.clips,
            clips_whole=self.clips_whole,
            inspection=self.inspection(),
            never_had_gradient=never,
            need_not_fall=self.need_not_fall(),
            second_moments=keeps_second_moments(self.tracker.optimizer),
            reverses=self.seen.reverses,
            makes_targets=self.makes_targets(),
            targets=self.tracker.targets.ends(),
            terms=self.tracker.targets.more_terms(),
        )
        if cuts := [format_site(record.site) for record in faults if record.name == "graph-cut"]:
            known.cut = f"the graph of some weights ends at {cuts[0]}"
        known.narrow = narrow_types(self.tracker.params)
        free = not any(record.name == "loss-input" for record in faults)  # else no answer can reach what logits can
        if free and not (known.need_not_fall or known.makes_targets):
            passes = self.tracker.num_used / max(self.tracker.attempts, 1)
            known.constant = self.tracker.constant.loss(passes)
        found = diagnose(self.stream, known)
        if found.verdict == "interrupted" and self.error:
            found.sentence = f"{found.sentence}: {self.error}"
        for finding in found.findings:
            self.add_place(finding)
            explain(finding, faults)
            if finding.code == found.verdict and "line" in finding.evidence:
                found.sentence = finding.sentence
        mistakes = [record.finding() for record in faults]
        found.findings = sorted([*mistakes, *found.findings], key=lambda each: SEVERITIES.index(each.severity))
        worst = found.findings[0] if mistakes else None
        if worst is not None and worst.severity == "critical" and worst.code in {each.code for each in mistakes}:
            found.verdict, found.sentence = worst.code, worst.sentence
            found.evidence |= worst.evidence
        elif (cause := cause_of(found.verdict, faults)) is not None:
            found.sentence += f"; likely of {cause.code} at {format_site(cause.site)}"
        if found.verdict in ("healthy", "too_short") and not self.stream.history.attempts:
            found.verdict, found.sentence = NOT_MEASURED, self.why_not_measured()
        return found

    def add_place(self, finding: Finding) -> None:
        """Name the line of the call that it is about."""
        tracker = self.tracker
        places = {"overclipped": tracker.clip_site, "clip_idle": tracker.clip_site}
        places |= dict.fromkeys(OF_THE_LOSS, tracker.loss_site)
        site = places.get(finding.code)
        of_the_rate = finding.code == "not_learning" and "ratio" in finding.evidence
        if (
            finding.code in OF_THE_STEP or of_the_rate
        ):  # of the weights that it holds and its rate, if nothing else sets that
            made = None if tracker.rates.changes else deciding_line(tracker.optimizer, tracker.step_site)
            site = made or tracker.step_site
        if site is not None:
            finding.sentence = f"{format_site(site)}: {finding.sentence}"
            finding.evidence |= {"file": site[0].co_filename, "line": site[1]}

    def why_not_measured(self) -> str:
        """Why no update of this optimizer was observed."""
        tracker, seen = self.tracker, self.seen
        if seen.internal_error:
            return f"the watch was stopped by an internal error: {seen.internal_error}"
        if seen.other_thread and not tracker.num_backwards:
            return f"the calls of thread {seen.other_thread!r} are not observed: enter the watch in it"
        if not seen.num_backwards:
            return "no backward pass and no step were called"
        reached = tracker.num_backwards
        passes = f"{seen.num_backwards} backward pass{'es' if seen.num_backwards > 1 else ''}"
        which = "" if reached == seen.num_backwards else f", {reached or 'none'} of which reached its parameters"
        if tracker.others.untracked:
            return f"{passes}{which}, and no step of this optimizer: another one stepped in its place"
        if tracker.is_still:
            return f"{passes}{which}, and this optimizer was not stepped: its weights are what they were"
        return f"{passes}{which}, and no step that calls hooks: its weights were moved by a compiled step, or by hand"

    def close(self, scale: Any, faults: list[FaultRecord], status: str, error: str | None, scaled: bool) -> None:
        """Finish the lines of metrics, and diagnose. A loop without a single update leaves its files all the same."""
        self.status, self.error = status, error
        self.seconds += time.monotonic() - self.started
        try:
            self.metrics.close(scale)
            self.file_sizes = self.files.flush()
            self.files.close()
        except OSError as failed:
            self.stop_writing(failed)
        self.final = self.diagnose(faults, scaled)

    def write(self, watch: dict[str, Any]) -> None:
        """Write diagnosis.json and the page. watch: the facts of the watch, see `summary.facts`."""
        if self.folder is not None and self.final is not None:
            try:
                self.write_diagnosis(self.folder, self.final, watch)
            except OSError as failed:
                self.set_incomplete(str(failed))
        self.lock.close()

    def write_diagnosis(self, folder: Path, final: Diagnosis, watch: dict[str, Any]) -> None:
        outcome = Outcome(self.status, self.error, self.num_updates, self.metrics.applied, seconds=self.seconds)
        code = int(final.unhealthy or self.status == "failed")
        diagnosis_file.write(folder, diagnosis_file.content(folder, final, outcome, code, watch=watch))
        run_page.finished(folder, {})

    def report(self, faults: list[FaultRecord], scaled: bool, several: bool) -> list[str]:
        """Lines of text, mistakes in the loop first. several: this is one of several optimizers."""
        found = self.final or self.diagnose(faults, scaled)
        kind = type(self.tracker.optimizer).__name__
        name = f"optimizer {self.tracker.index} ({kind}): " if several else ""
        skipped = f", {self.num_skipped} of them skipped" if self.num_skipped else ""
        many = f"{self.num_updates} update{'s' if self.num_updates != 1 else ''}"
        mistakes = {record.name for record in faults}
        reason = "" if found.verdict in mistakes else f": {found.sentence}"
        lines = [f"{name}verdict: {found.verdict} ({many}{skipped}){reason}"]
        for record in faults:
            lines += [record.line, "    " + "; ".join(filter(None, (record.occurrences, record.kind.fix)))]
        lines += [f"{each.severity}: {each.sentence}" for each in remaining(found) if each.code not in mistakes]
        others = self.tracker.others.untracked
        lines += [f"its parameters were also moved by {each}, which was not passed to the watch" for each in others]
        lines += [f"it ended with: {self.error}"] * bool(self.error and self.error not in reason)
        off = self.seen.switched_off.items()
        lines += [f"{reader} was switched off by an internal error: {error}" for reader, error in off]
        unchecked = (
            f", {len(found.unchecked)} could not be: diagnosis.json gives the reasons" if found.unchecked else ""
        )
        return [*lines, f"{len(found.checked)} rules were applied to the numbers{unchecked}"]
