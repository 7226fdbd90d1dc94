"""One job: a run with all that watches it, its diagnosis, and what is said at its end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gradlab import checkpoint, snapshot, verdict
from gradlab.cli import INTERRUPTED
from gradlab.config import Config
from gradlab.diagnosis.rules import Stream, diagnose
from gradlab.distributed import World
from gradlab.loggers.local import read_run
from gradlab.loggers.progress import Progress
from gradlab.pretrain import pretrained
from gradlab.trainer import Trainer


class Job:
    """A configuration at work in a folder. Rank 0 alone logs, writes and speaks."""

    def __init__(
        self, config: Config, plain: dict[str, Any], folder: Path, overrides: list[str], group: str, place: World
    ) -> None:
        """plain: the configuration as plain values. overrides: as typed. group: the experiment's name."""
        if config.pretrain and not config.resume:
            config.init_from = pretrained(config, place)
        self.config, self.folder, self.overrides, self.place = config, folder, overrides, place
        self.progress = Progress(config.trainer.progress, 0, place.main)
        self.trainer = Trainer(config, folder, place, (self.observe,), plain, self.progress.say)
        self.stream = Stream(config.diagnosis)
        self.stream.names = self.trainer.update.names
        self.sink = config.logger.build(folder, plain, group) if place.main else None
        if config.resume:
            kept = checkpoint.load("resume", folder / "checkpoint.pt")["files"]
            for line, layer_norms in read_run(folder, kept):
                self.stream.observe(line, layer_norms)

    def observe(self, metrics: dict[str, Any], layers: list[float | None] | None) -> None:
        """Take in one line of metrics."""
        self.stream.observe(metrics, layers)
        if "train/loss" in metrics:
            self.progress.log(metrics)
        if self.sink is not None:
            self.sink.log(metrics)

    def run(self) -> int:
        """Train, diagnose, say; returns the exit code."""
        if self.config.story:
            self.progress.say(self.config.story.strip())
        self.progress.total = self.trainer.planned
        self.progress.start()
        ended: dict[str, Any] = {"status": "error"}
        try:
            outcome = self.trainer.run()
            how = (outcome.status, outcome.error, self.config.diagnosis, outcome.scale_too_small)
            diagnosis = diagnose(self.stream, *how)
            ended = verdict.summary(diagnosis, outcome)
        finally:
            self.progress.finish(self.trainer.outcome.applied)
            if self.sink is not None:
                self.sink.finish(ended)
        code, expectation = verdict.judge(self.config.expect, diagnosis)
        code = INTERRUPTED if outcome.status == "interrupted" else code
        if not self.place.main:
            self.place.barrier()  # a rank that ends with 1 would have the launcher end rank 0, which still writes
            return code
        overflow = snapshot.find_overflow(self.trainer) if outcome.status == "failed" else None
        verdict.write(self.folder, diagnosis, outcome, overflow, code)
        lines = verdict.tell(diagnosis, outcome, overflow, self.config, self.overrides, self.folder)
        lines += [expectation] * bool(expectation)
        verdict.show(f"verdict: {diagnosis.verdict}", lines, code == 0)
        self.place.barrier()
        return code
