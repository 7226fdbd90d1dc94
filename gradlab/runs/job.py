"""One job: a run with everything that follows it, its diagnosis, and the summary at its end."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gradlab.base.command import INTERRUPTED, identity, untreated
from gradlab.base.distributed import World
from gradlab.base.option import Invalid
from gradlab.config.remedy import summary
from gradlab.config.schema import Config, choices
from gradlab.data.check import targets_of
from gradlab.data.loader import Loader
from gradlab.diagnosis.diagnose import MetricStream, diagnose
from gradlab.diagnosis.finding import Diagnosis
from gradlab.diagnosis.inspection import Inspection
from gradlab.diagnosis.measurements import Measurements
from gradlab.diagnosis.replay.overflow import Overflow
from gradlab.loggers.base import About
from gradlab.loggers.local import read_run
from gradlab.loggers.progress import Progress
from gradlab.loggers.several import Loggers
from gradlab.measure.rounded_off import narrow_types
from gradlab.measure.samples import Sample
from gradlab.remedies.candidates import Candidate, candidates_for
from gradlab.remedies.evidence import evidence
from gradlab.runs import diagnosis_file, expectation
from gradlab.runs.outcome_class import HEALTHY
from gradlab.runs.record import RunRecord
from gradlab.runs.summary import ended, print_panel, summary_lines
from gradlab.runs.trust import mark_run
from gradlab.train import checkpoint, environment, snapshot
from gradlab.train.inspection import (
    find_constant_answers,
    find_overflow,
    find_overflow_in_evaluation,
    initial_overflows,
    input_size,
    inspect,
    runs_alone,
    target_size,
)
from gradlab.train.outcome import Outcome
from gradlab.train.pretraining import pretrained
from gradlab.train.samples import samples_of
from gradlab.train.sink import FileSink, Sink
from gradlab.train.trainer import Trainer
from gradlab.update.adam import unbounding_betas
from gradlab.update.clip import NoClip
from gradlab.update.recorder import Layers
from gradlab.update.stepping import keeps_second_moments


@dataclass(frozen=True)
class Views:
    """What packages above this one make of a run's folder for people to see."""

    page: Callable[[Path, dict[str, Any]], None] = lambda folder, config: None
    """Writes the page; the configuration is of plain values."""
    figures: Callable[[Path], Iterable[Path]] = lambda folder: ()
    """Draws the figures, and returns their files."""


NO_VIEWS = Views()
MakeTrainer = Callable[[Config, Path, World, tuple[Sink, ...], dict[str, Any], Callable[[str], None]], Trainer]


class Job(Sink):
    """A configuration at work in a folder. Rank 0 alone logs, writes and prints."""

    def __init__(
        self,
        config: Config,
        plain: dict[str, Any],
        folder: Path,
        overrides: list[str],
        group: str,
        world: World,
        remedy: dict[str, Any] | None = None,
        make: MakeTrainer = Trainer,
        views: Views = NO_VIEWS,
    ) -> None:
        """plain: the configuration as plain values. overrides: as typed. group: the experiment's name.

        remedy: what remedies have changed in the configuration. make: `Trainer`, or what makes one of its arguments; of
        those many may run at once, and loggers take one run at a time, so they get all lines at the end.
        views: made when all else is written.
        """
        if config.pretrain and not config.resume and not config.init_from:
            config.init_from = pretrained(config, world)
        self.config, self.folder, self.overrides, self.world = config, folder, overrides, world
        self.remedy, self.views = remedy, views
        self.progress = Progress(config.trainer.progress, world.main)
        self.trainer = make(config, folder, world, (FileSink(), self), plain, self.progress.say)
        self.stream = MetricStream(
            config.diagnosis, self.trainer.update.names, self.trainer.observed.order, self.trainer.called
        )
        header, chosen = self.trainer.observed.header(), choices(config)
        about = About(folder, plain, group, header, overrides, make is Trainer, choices=chosen)
        about.summarise, about.draw = (lambda folder: ended(RunRecord(folder, plain)).lines), views.figures
        if config.resume:
            with checkpoint.taken("resume", folder / "checkpoint.pt"):
                state = snapshot.load(folder)
                snapshot.check_model(self.trainer, state)
                for line, layers in read_run(folder, state.get("files", [0, 0])):
                    self.stream.observe(line, layers)
                    about.lines += 1
        self.log_to = functools.partial(Loggers, config.logger if world.main else {}, about)
        self.loggers = self.log_to() if make is Trainer else None

    def save(self) -> dict[str, Any]:
        """The loggers have to have all lines by then."""
        if self.loggers is not None:
            self.loggers.catch_up()
        return {}

    def write(self, metrics: dict[str, Any], layers: Layers | None) -> None:
        """Take in one line of metrics."""
        self.stream.observe(metrics, layers)
        if "train/loss" in metrics:
            self.progress.log(metrics)
        if self.loggers is not None:
            self.loggers.log(metrics, layers)

    def run(self) -> int:
        """Train, diagnose and print the summary; returns the exit code."""
        if self.config.story:
            self.progress.say(self.config.story.strip())
        if self.remedy:
            self.progress.say(summary(self.remedy))
        self.progress.total, self.progress.beside = self.trainer.planned, bool(self.config.trainer.updates)
        self.progress.start()
        return self.end(self.trainer.run)

    def end(self, run: Callable[[], Outcome]) -> int:
        """Diagnose the outcome of `run`, print the summary, finish the loggers; returns the exit code."""
        content: dict[str, Any] = {"outcome": {"status": "error"}}
        try:
            code, content = self.conclude(run)
        except BaseException as error:
            content["outcome"]["error"] = " ".join(str(error).split())[:1000] or type(error).__name__
            raise
        finally:
            if self.loggers is None:
                self.loggers = self.log_to()
                for line, layers in read_run(self.folder):
                    self.loggers.log(line, layers)
            self.loggers.finish(content, self.folder)
        self.world.barrier()  # a rank that ends with 1 would have the launcher end rank 0, which still writes
        return code

    def conclude(self, run: Callable[[], Outcome]) -> tuple[int, dict[str, Any]]:
        """The exit code, and on rank 0 the content of diagnosis.json."""
        if self.world.main:
            mark_run(self.folder)
            t = self.trainer
            environment.record(self.folder, t.device, self.world.size, bool(self.config.resume), t.planned)
        try:
            outcome = run()
            diagnosis, overflow = self.diagnose(outcome)
        finally:
            self.progress.finish(self.trainer.outcome.attempts)
        code, sentence = expectation.judge(self.config.expect, diagnosis)
        code = self.world.broadcast(INTERRUPTED if outcome.status == "interrupted" else code)
        if not self.world.main:
            return code, {}
        began = identity(self.overrides), self.trainer.planned, self.remedy
        content = diagnosis_file.content(self.folder, diagnosis, outcome, code, overflow, *began)
        candidates = self.suggest(content)
        content["remedies"] = [asdict(each) for each in candidates]
        diagnosis_file.write(self.folder, content)
        self.views.page(self.folder, self.trainer.plain_config)
        given = untreated(self.overrides, self.remedy)
        lines = summary_lines(diagnosis, outcome, overflow, self.config, given, self.folder, candidates)
        lines += [sentence] * bool(sentence)
        print_panel(f"verdict: {diagnosis.verdict}", lines, code == 0)
        return code, content

    def suggest(self, content: dict[str, Any]) -> list[Candidate]:
        """What to try next. content: of diagnosis.json, which has not been written yet."""
        if content["verdict"] in HEALTHY:
            return []
        record = RunRecord(self.folder, self.trainer.plain_config)
        record.diagnosis = content
        return candidates_for(evidence(record), self.config, untreated(self.overrides, self.remedy))

    def inspection(self) -> Inspection | None:
        """Inspect the final model. A failure costs the rules that need it, not the run."""
        try:
            return inspect(self.trainer)
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            self.progress.say(f"the final model could not be inspected: {' '.join(str(error).split())[:200]}")
            return None

    def samples(self, attempts: list[int]) -> dict[int, list[Sample]]:
        """The samples of single updates, as far as they can be measured."""
        if self.trainer.stream is not None:
            self.progress.say("single samples were not measured: the data is streamed")
            return {}
        try:
            return samples_of(self.trainer, attempts)
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            self.progress.say(f"single samples could not be measured: {' '.join(str(error).split())[:200]}")
            return {}

    def constants(self, name: str) -> tuple[float | None, dict[str, float], bool]:
        """Loss of the best constant answer on a split of the data, and of its terms; None where that is not known.

        And whether it is known to be better than others: see `find_constant_answers`.
        """
        split = getattr(self.trainer.data, name)
        if split is None or not len(split) or isinstance(split, Loader):
            return None, {}, False
        run = self.trainer
        known = run.loss.best_constant(name, lambda: targets_of(split))
        if known is not None or not run.loss.constant_sought or run.outcome.status != "completed":
            return known, {}, False
        try:
            return find_constant_answers(run, split) if runs_alone(run) else (None, {}, False)
        except (RuntimeError, ValueError, TypeError, IndexError):
            return None, {}, False

    def floor(self) -> float:
        """The lowest loss that the training set allows, as far as known."""
        split = self.trainer.data.train
        return 0.0 if isinstance(split, Loader) else self.trainer.loss.floor(lambda: targets_of(split))

    def diagnose(self, outcome: Outcome) -> tuple[Diagnosis, Overflow | None]:
        """From the stream, the failing update run again, and the inspection of the final model; rank 0's counts."""
        run, precision = self.trainer, self.config.precision
        run.assemble()
        overflow = inspection = None
        # a single skipped update at the end is how a dynamic loss scale finds its place
        failing = run.failing and (self.stream.history.streak > 1 or not precision.scaled)
        if self.world.main and (outcome.status == "failed" or failing or self.stream.history.broken):
            overflow = find_overflow(run)
        elif self.world.main and outcome.status == "completed":
            inspection = self.inspection()
            if outcome.eval and not math.isfinite(outcome.eval[-1]["eval/loss"]):
                overflow = find_overflow_in_evaluation(run)
        (constant, of_terms, is_chosen), (eval_constant, _, _) = self.constants("train"), self.constants("test")
        known = Measurements(
            outcome.status,
            outcome.error,
            scale_too_small=outcome.scale_too_small,
            fp16_forward=precision.half,
            dynamic_loss_scale=precision.scaled,
            clips=not isinstance(self.config.clip, NoClip),
            clips_whole=self.config.clip.whole,
            eps=raised_eps(self.config),
            betas=unbounding_betas(self.config.optimizer),
            second_moments=keeps_second_moments(run.update.optimizer),
            noise=self.config.noise.norm(
                outcome.applied, sum(p.numel() for p in run.module.parameters() if p.requires_grad)
            ),
            overflow=overflow,
            initial_overflows=initial_overflows(run, overflow) if overflow and precision.half else None,
            inspection=inspection,
            input_size=input_size(run) if self.world.main else math.nan,
            target_size=target_size(run) if self.world.main else math.nan,
            header=run.observed.header(),
            rate=self.config.optimizer.lr,
            decay=None if self.config.optimizer.group_optimizers() else self.config.optimizer.decays,
            constant=constant,
            eval_constant=eval_constant,
            constants_of_terms=of_terms,
            floor=self.floor(),
            constant_found=run.loss.constant_sought,
            constant_chosen=is_chosen,
            summed=run.loss.summed or run.loss.reduction == "sum",
            narrow=narrow_types(run.module.parameters()),
        )
        return diagnose(self.stream, known, self.samples if self.world.main else None), overflow


def raised_eps(config: Config) -> float:
    """The optimizer's eps where it is above its default, below which gradients are what is small; else 0."""
    given, default = (getattr(o, "eps", 0.0) for o in (config.optimizer, type(config.optimizer)))
    return given if given > default else 0.0


def builds(config: Config, folder: Path, world: World) -> bool:
    """Whether the parts of a configuration fit together."""
    try:
        if config.pretrain:
            config.init_from = pretrained(config, world)
        Trainer(config, folder, world, say=lambda text: None)
    except Invalid:
        return False
    return True
